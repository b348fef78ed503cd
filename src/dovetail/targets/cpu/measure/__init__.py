"""Measurements of the machine: arithmetic peak, bandwidth, calibration."""

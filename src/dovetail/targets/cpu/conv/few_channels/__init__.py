"""Convolutions of few channels with a large window, such as first layers."""

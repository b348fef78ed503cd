"""Convolutions with a k×k window over few pixels."""

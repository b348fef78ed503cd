"""dovetail behind the interfaces of other projects."""

"""Layers as passes of one persistent kernel ([0026](docs/design/0026-kernels-whose-blocks-stay.md)).

Start at `runs`: it finds layers by `repetition` and `shared_first`, makes parts by `norms` and `products`, what they
send each other by `exchange`, and asks `choice` whether launches are faster.
"""

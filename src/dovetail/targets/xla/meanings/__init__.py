"""What each primitive is in JAX: one `table`, one family a file.

`elementwise` `reductions` `shapes` `indexing` `products` `matrices` `images`.
"""

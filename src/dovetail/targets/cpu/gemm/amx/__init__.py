"""Many rows in bf16, summed in f32.

- `tiles`: products on tiles of AMX, and how they are cut
- `expand`: panels of other forms, expanded to bf16 for many rows
- `bf16`: products whose factors are all rounded (`precision="bf16"`), on tiles or by pairs
"""

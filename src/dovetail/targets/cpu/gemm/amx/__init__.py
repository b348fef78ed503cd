"""Many rows in bf16, summed in f32.

- `tiles`: products on tiles of AMX, and how they are cut
- `cells`, `expand`: cells of other forms whose many rows are on tiles: their panels are expanded to bf16
- `bf16`: products whose factors are all rounded (`precision="bf16"`), on tiles or by pairs
"""

"""Arrays and memory.

On the host: `address` `aligned` `huge_pages` `page_advice` `spans`; what a run has: `memory` `memory_limit` `feeds`. On
devices: `buffer` `device_array`; of other libraries: `array_library` `dlpack` `foreign`.
"""

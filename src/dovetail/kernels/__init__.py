"""Kernels of one step each, as data, before any target prints them.

A step is a problem (`problems`), for which rows of a target's table offer kernels, or refuse with a condition
(`choice`). What decides: the machine (`device`, `matrix_instruction`), where a kernel will run (`request`), and figures
of a card (`timings`). Kernels are bodies in the loop language (`loops`): those of any machine are in `families`, those
whose threads share tiles in `gpu`. `spec` is the kernel of a step: code, bindings, tiles.
"""

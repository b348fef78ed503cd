"""Programs: results of `dovetail.compile`, its options, weights in blocks, arrays of a device."""

from dovetail.report.measured import KernelTime, Measured
from dovetail.runtime.module import ModuleProgram
from dovetail.runtime.options import CompileOptions
from dovetail.runtime.program import Program, Signature, TensorSpec
from dovetail.runtime.quantize import Quantize, Quantized, QuantizedLayer
from dovetail.settings import Settings, SettingsOptions
from dovetail.targets.runtime.arrays.device_array import DeviceArray

__all__ = [
    "CompileOptions",
    "DeviceArray",
    "KernelTime",
    "Measured",
    "ModuleProgram",
    "Program",
    "Quantize",
    "Quantized",
    "QuantizedLayer",
    "Settings",
    "SettingsOptions",
    "Signature",
    "TensorSpec",
]

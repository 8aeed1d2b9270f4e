# SPDX-License-Identifier: MIT
"""What other wheels build on, besides the names of `turbo_gemm` itself. Imported lazily.

- `multiply_payloads`: a product of operands that are quantised already, payloads and scales, in any granularity.

Of the ops:

- `DTYPES`: what 16- and 32-bit operands may be; `gradient_operand`: a gradient of C as products of it read it.
- `into_main_grad`, `check_main_grad`: whether a call's weight gradient goes into ``main_grad``, and may;
  `product_into_main_grad`: a product that adds it there; `weight_takes_part`: whether a node's backward is to.
- `Scheme`, `mx_direction`: how operands are quantised by a config; `quantize_batch`, with `RowGroups`: quantises one.
  `quantized`: what a user may pass as a weight, quantised; `operand_recipe`: how one that is must have been.
- `differentiable_product`, of a `Product` with `Rules`: a product of quantised operands, differentiable in the tensors
  as they were; `without_derivative`: a gradient that has none, by what `sources_of` and `anchor_of` name;
  `dequantized`: such a tensor, of one that is quantised already; `as_pair`: any operand as a pair.
- `gemm_reference`: the float32 product; `BLAS_REACH`: how many elements a BLAS is trusted with; `aligned`: where it
  wants an operand to begin.

Of the HIP kernels' launches:

- `payload_of`, `scale_of`, `native_operand`: operands as the main loops read them, `NativeOutput`: C; `stride_of`: from
  index to index; `why_not_operands`: why matrix units cannot take them.
- `TILES`: names of tiles; `BLOCK`: edge of a block with one scale; `MAX_ROW_BYTES`: the longest rows.

Stages of the Triton kernels, for kernels of other wheels:

- `tile_of_program`, `grouped_order`: the order in which programs take tiles, over XCDs and for L2.
- `block_pointers`, `load_block`: a block of a matrix in memory, any strides, with or without edges; `both_negative`: a
  mask of rows and columns; `NARROW_BYTES`: how far a block may reach with 32-bit offsets, `is_wide`: whether it does.
- `add_bias`, `store_tile`: the epilogue.
- `sum_fp8`, `sum_fp8_blocks`, `sum_mx`: the main loops of quantised operands; `load_scales`: scales of their epilogue.

Their launches:

- `pack_rows`, `pack_scales`: operands and scales as the main loops read them; `row_stride`: of packed rows;
  `descriptor`: of such a matrix, for targets that load through one.
- `FP8_TABLE`, `fp8_lds_bytes`, `MAX_K_OF_14_BITS`: the rows of quantised operands, and what they need.
- `mx_format`: the name of an MX payload's format.

Tiles:

- `Tile`: a row of a table; `efficiency`, `tile_cost`: the model that rows are chosen by; `lds_bytes`: what one needs.
- `MAX_REGULAR_STRIDE`: the longest rows, in elements, of tensors that rows of a table may ask to be regular.
- `group_rows`: rows of tiles that are walked together; `table_target`: the device's name in tables.
- `GemmRecord`, `record_of`: a launch as the audit takes it.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_gemm.calls import mx_format
    from turbo_gemm.pytorch.kernels.blas_settings import BLAS_REACH
    from turbo_gemm.pytorch.kernels.gemm_reference import gemm_reference
    from turbo_gemm.pytorch.kernels.native_operands import (
        BLOCK,
        MAX_ROW_BYTES,
        TILES,
        NativeOutput,
        native_operand,
        payload_of,
        scale_of,
        stride_of,
        why_not_operands,
    )
    from turbo_gemm.pytorch.kernels.scaled_mm import aligned
    from turbo_gemm.pytorch.ops.gemm_checks import DTYPES, check_main_grad
    from turbo_gemm.pytorch.ops.gemm_fp8_inputs import as_pair, dequantized, operand_recipe, quantized
    from turbo_gemm.pytorch.ops.gemm_fp8_quantize import RowGroups, Scheme, mx_direction, quantize_batch
    from turbo_gemm.pytorch.ops.gemm_gradients import gradient_operand
    from turbo_gemm.pytorch.ops.main_grad import into_main_grad, product_into_main_grad, weight_takes_part
    from turbo_gemm.pytorch.ops.payload_product import multiply_payloads
    from turbo_gemm.pytorch.ops.quantised_product import (
        Gradients,
        Product,
        Rules,
        anchor_of,
        differentiable_product,
        sources_of,
        without_derivative,
    )
    from turbo_gemm.triton.gemm_fp8_audit import GemmRecord, record_of
    from turbo_gemm.triton.gemm_fp8_block_kernel import sum_fp8_blocks
    from turbo_gemm.triton.gemm_fp8_kernel import load_scales, sum_fp8
    from turbo_gemm.triton.gemm_fp8_tiles import FP8_TABLE, MAX_K_OF_14_BITS, fp8_lds_bytes
    from turbo_gemm.triton.gemm_kernel import (
        NARROW_BYTES,
        add_bias,
        block_pointers,
        both_negative,
        grouped_order,
        load_block,
        store_tile,
        tile_of_program,
    )
    from turbo_gemm.triton.gemm_launch import (
        MAX_REGULAR_STRIDE,
        descriptor,
        is_wide,
        pack_rows,
        pack_scales,
        row_stride,
    )
    from turbo_gemm.triton.gemm_mx_kernel import sum_mx
    from turbo_gemm.triton.gemm_tiles import Tile, efficiency, group_rows, lds_bytes, table_target, tile_cost

_INPUTS, _QUANTIZE = (f"turbo_gemm.pytorch.ops.gemm_fp8_{part}" for part in ("inputs", "quantize"))
_PRODUCT = "turbo_gemm.pytorch.ops.quantised_product"
_KERNEL, _LAUNCH, _TILES = (f"turbo_gemm.triton.gemm_{part}" for part in ("kernel", "launch", "tiles"))
_FP8, _AUDIT = (f"turbo_gemm.triton.gemm_fp8_{part}" for part in ("tiles", "audit"))

_NATIVE = "turbo_gemm.pytorch.kernels.native_operands"

__all__ = [
    "BLOCK",
    "MAX_ROW_BYTES",
    "TILES",
    "NativeOutput",
    "native_operand",
    "payload_of",
    "scale_of",
    "stride_of",
    "why_not_operands",
    "BLAS_REACH",
    "gemm_reference",
    "DTYPES",
    "Gradients",
    "Product",
    "RowGroups",
    "Rules",
    "Scheme",
    "as_pair",
    "check_main_grad",
    "dequantized",
    "anchor_of",
    "differentiable_product",
    "sources_of",
    "weight_takes_part",
    "without_derivative",
    "gradient_operand",
    "into_main_grad",
    "product_into_main_grad",
    "FP8_TABLE",
    "MAX_K_OF_14_BITS",
    "MAX_REGULAR_STRIDE",
    "NARROW_BYTES",
    "GemmRecord",
    "Tile",
    "add_bias",
    "aligned",
    "block_pointers",
    "both_negative",
    "descriptor",
    "efficiency",
    "fp8_lds_bytes",
    "group_rows",
    "grouped_order",
    "is_wide",
    "lds_bytes",
    "load_block",
    "load_scales",
    "multiply_payloads",
    "mx_direction",
    "mx_format",
    "pack_rows",
    "pack_scales",
    "operand_recipe",
    "quantize_batch",
    "quantized",
    "record_of",
    "row_stride",
    "store_tile",
    "sum_fp8",
    "sum_fp8_blocks",
    "sum_mx",
    "table_target",
    "tile_cost",
    "tile_of_program",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "multiply_payloads": "turbo_gemm.pytorch.ops.payload_product",
        "BLOCK": _NATIVE,
        "MAX_ROW_BYTES": _NATIVE,
        "TILES": _NATIVE,
        "NativeOutput": _NATIVE,
        "native_operand": _NATIVE,
        "payload_of": _NATIVE,
        "scale_of": _NATIVE,
        "stride_of": _NATIVE,
        "why_not_operands": _NATIVE,
        "mx_format": "turbo_gemm.calls",
        "Gradients": _PRODUCT,
        "Product": _PRODUCT,
        "Rules": _PRODUCT,
        "anchor_of": _PRODUCT,
        "differentiable_product": _PRODUCT,
        "sources_of": _PRODUCT,
        "without_derivative": _PRODUCT,
        "RowGroups": _QUANTIZE,
        "Scheme": _QUANTIZE,
        "mx_direction": _QUANTIZE,
        "quantize_batch": _QUANTIZE,
        "as_pair": _INPUTS,
        "dequantized": _INPUTS,
        "operand_recipe": _INPUTS,
        "quantized": _INPUTS,
        "aligned": "turbo_gemm.pytorch.kernels.scaled_mm",
        "BLAS_REACH": "turbo_gemm.pytorch.kernels.blas_settings",
        "gemm_reference": "turbo_gemm.pytorch.kernels.gemm_reference",
        "DTYPES": "turbo_gemm.pytorch.ops.gemm_checks",
        "check_main_grad": "turbo_gemm.pytorch.ops.gemm_checks",
        "gradient_operand": "turbo_gemm.pytorch.ops.gemm_gradients",
        "into_main_grad": "turbo_gemm.pytorch.ops.main_grad",
        "product_into_main_grad": "turbo_gemm.pytorch.ops.main_grad",
        "weight_takes_part": "turbo_gemm.pytorch.ops.main_grad",
        "FP8_TABLE": _FP8,
        "MAX_K_OF_14_BITS": _FP8,
        "fp8_lds_bytes": _FP8,
        "load_scales": "turbo_gemm.triton.gemm_fp8_kernel",
        "sum_fp8": "turbo_gemm.triton.gemm_fp8_kernel",
        "sum_fp8_blocks": "turbo_gemm.triton.gemm_fp8_block_kernel",
        "sum_mx": "turbo_gemm.triton.gemm_mx_kernel",
        "NARROW_BYTES": _KERNEL,
        "add_bias": _KERNEL,
        "block_pointers": _KERNEL,
        "both_negative": _KERNEL,
        "grouped_order": _KERNEL,
        "load_block": _KERNEL,
        "store_tile": _KERNEL,
        "tile_of_program": _KERNEL,
        "MAX_REGULAR_STRIDE": _LAUNCH,
        "descriptor": _LAUNCH,
        "is_wide": _LAUNCH,
        "pack_rows": _LAUNCH,
        "pack_scales": _LAUNCH,
        "row_stride": _LAUNCH,
        "Tile": _TILES,
        "efficiency": _TILES,
        "group_rows": _TILES,
        "lds_bytes": _TILES,
        "table_target": _TILES,
        "tile_cost": _TILES,
        "GemmRecord": _AUDIT,
        "record_of": _AUDIT,
    },
)

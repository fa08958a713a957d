"""Square 2D convolution with fast forms for CPUs; MindSpore's operator on other devices.

MindSpore passes oneDNN tensors in plain NCHW order. With AVX-512, oneDNN 3.10 then falls back to its
reference loops for every kernel except 1x1 (0.2-0.8 GFLOP/s); below AVX-512 it uses im2col with a
generated GEMM (28-148 GFLOP/s in ResNet-20's inner layers). In its preferred formats it has
optimized kernels for all of them (100-400 GFLOP/s), which outweighs the cost of reordering: the fastest
form is a C++ operator that does this (kernels/convolution.cpp). Without it, MindSpore's operator runs
with oneDNN limited to AVX2; if oneDNN can no longer be limited, an explicit im2col runs. All forms have
the same weight and the same values up to rounding.
"""

import ctypes
import functools
import os
import platform
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeNormal, Initializer, initializer

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive

Form = Literal["onednn", "native", "gemm"]

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_AVX512_CORE_BIT = 0x20  # of dnnl_cpu_isa_t: avx2 is 0x07, avx512_core 0x27


def hold_to_avx2(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit oneDNN to AVX2 kernels unless the user has set a limit.

    oneDNN reads the variable at its first operator, not at import, so this works after
    `import mindspore` and silently has no effect after the first CPU operator.
    """
    if "DNNL_MAX_CPU_ISA" not in environ:  # the older name, still read by oneDNN
        environ.setdefault(ISA_VARIABLE, "AVX2")


@functools.cache
def native_is_fast() -> bool:
    """True if this process's oneDNN uses GEMM kernels for plain-layout convolutions.

    Queries the library, because the environment variable may have been set too late; the query
    fixes the instruction set for the life of the process.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False  # never measured there; the explicit GEMM is the safe choice
    library = Path(ms.__file__).parent / "lib" / "libdnnl.so.3"
    try:
        isa = int(ctypes.CDLL(str(library)).dnnl_get_effective_cpu_isa())
    except (OSError, AttributeError):
        return False
    return not isa & _AVX512_CORE_BIT


def pick(device_target: str, kernel: int, stride: int, padding: int, fast: bool, groups: int = 1) -> Form:
    """Select the form to run; `fast` is the result of `native_is_fast` and matters on CPUs only.

    With groups there is no explicit GEMM: small ones would not gain from it.
    """
    # oneDNN maps a plain 1x1 to its matmul whatever the instruction set
    pointwise = (kernel, stride, padding) == (1, 1, 0)
    return "native" if device_target != "CPU" or fast or pointwise or groups > 1 else "gemm"


class _OneDNN(nn.Cell):
    """Convolution by the C++ operator, for float32.

    One operator computes both gradients: two would wait for each other and each reorder `dout`. With `apart` there are
    two, so that an unused one never runs: that of a stem's images or of frozen weights.
    """

    def __init__(self, operators: Path, kernel: int, stride: int, padding: int, apart: bool) -> None:
        super().__init__()
        self.form = Tensor([stride, padding], ms.int32)
        self.apart = apart

        def first(*given: Any) -> Any:
            return given[0]

        def second(*given: Any) -> Any:
            return given[1]

        def both(*given: Any) -> tuple[Any, Any]:
            return given[0], given[1]

        def results(images: Sequence[int], weights: Sequence[int], form: Sequence[int]) -> tuple[int, ...]:
            rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in images[2:])
            return images[0], weights[0], rows, columns

        of_images = primitive(operators, "convolution_images", first, first)
        of_weights = primitive(operators, "convolution_weights", second, second)
        of_both = primitive(operators, "convolution_gradients", both, both)

        def by_two(images: Tensor, weights: Tensor, form: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
            dimages, dweights = of_images(images, weights, dout, form), of_weights(images, weights, dout, form)
            return dimages, dweights, ops.zeros_like(form)

        def by_one(images: Tensor, weights: Tensor, form: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
            dimages, dweights = of_both(images, weights, dout, form)
            return dimages, dweights, ops.zeros_like(form)

        window = {"kernel": kernel, "stride": stride, "padding": padding}
        self.parted = primitive(operators, "convolution", results, first, by_two, apart=True, **window)
        self.joint = primitive(operators, "convolution", results, first, by_one, apart=False, **window)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.apart:
            return self.parted(x, weight, self.form)
        return self.joint(x, weight, self.form)


class _Gemm(nn.Cell):
    """Convolution as im2col and one GEMM per image (Chellapilla et al. 2006).

    With U = im2col(x) of shape (N, I*k*k, L) and W of shape (O, I*k*k): y = W U, dW = sum_n dy U^T and
    dx = col2im(W^T dy). The explicit backward pass recomputes U: with autodiff, which keeps every U, a
    ResNet-20 step took 1.4 times as long on 32x32 images and as long on 8x8.
    """

    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.times_transposed = ops.BatchMatMul(transpose_b=True)

    def unfold(self, x: Tensor) -> Tensor:
        """(N, I, H, W) to (N, I*k*k, L), rows ordered as `weight.reshape(O, -1)`."""
        return ops.unfold(x, self.kernel, padding=self.padding, stride=self.stride)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        outputs = weight.shape[0]
        rows = (height + 2 * self.padding - self.kernel) // self.stride + 1
        columns = (width + 2 * self.padding - self.kernel) // self.stride + 1
        y = ops.matmul(weight.reshape(outputs, -1), self.unfold(x))
        return y.reshape(batch, outputs, rows, columns)

    def bprop(self, x: Tensor, weight: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, height, width = x.shape
        outputs = weight.shape[0]
        dy = dout.reshape(batch, outputs, -1)
        dweight = self.times_transposed(dy, self.unfold(x)).sum(0).reshape(weight.shape)
        dcolumns = ops.matmul(weight.reshape(outputs, -1).transpose(1, 0), dy)
        size = Tensor([height, width], ms.int32)
        dx = ops.fold(dcolumns, size, self.kernel, padding=self.padding, stride=self.stride)
        return dx, dweight


class Conv2d(nn.Cell):
    """Square convolution without bias: (N, I, H, W) to (N, O, H', W'), H' = (H + 2p - k) // s + 1.

    Each of `group` equal parts of the outputs sees its own part of the inputs.

    It computes in the input's type. CPUs have no fast half precision: there, images and weights rounded to it are
    multiplied in float32 and the result is rounded, like on a device that accumulates half products in float32.

    `weight` is (O, I / group, k, k) as in `mindspore.nn.Conv2d`, so a checkpoint fits every device and form. It is
    initialized He normal over fan-out (He et al. 2015, eq. 14). `form` is the selected form; if it is not `onednn`,
    build the first convolution before any CPU operator runs, or AVX-512 disables the native form.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        weight_init: Initializer | Tensor | str | None = None,
        stem: bool = False,
        group: int = 1,
    ) -> None:
        super().__init__()
        shape = (out_channels, in_channels // group, kernel_size, kernel_size)
        init = HeNormal(mode="fan_out", nonlinearity="relu") if weight_init is None else weight_init
        self.weight = Parameter(initializer(init, shape, ms.float32), name="weight")
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.group = 1, group
        target = str(ms.get_context("device_target"))
        operators = library.usable() if target == "CPU" else None
        if target == "CPU" and operators is None:
            hold_to_avx2()
        self.widens = target == "CPU"
        fast = target == "CPU" and operators is None and native_is_fast()
        plain = pick(target, kernel_size, stride, padding, fast, group)
        self.form: Form = plain if operators is None else "onednn"
        self.convolution = (
            _Gemm(kernel_size, stride, padding)
            if plain == "gemm"
            else ops.Conv2D(out_channels, kernel_size, pad_mode="pad", pad=padding, stride=stride, group=group)
        )
        self.fastest = None if operators is None else _OneDNN(operators, kernel_size, stride, padding, stem)

    def gradients_apart(self) -> None:
        """Compute the two gradients separately, for networks with frozen parts; call it before compiling."""
        if self.fastest is not None:
            self.fastest.apart = True

    def construct(self, x: Tensor) -> Tensor:
        if x.dtype == ms.float32:
            return self.product(x, self.weight)
        weight = self.weight.astype(x.dtype)
        if self.widens:
            return self.product(x.astype(ms.float32), weight.astype(ms.float32)).astype(x.dtype)
        return self.product(x, weight)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve x with a weight of the same type; the result has that type too."""
        if self.fastest is not None:
            return self.fastest(x, weight)
        return self.convolution(x, weight)

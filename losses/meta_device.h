#pragma once

#include <ATen/core/Tensor.h>

// The loss head runs on libtorch's meta device, too, whose tensors have shapes and no memory. Such a run makes the same
// allocations, in the same order and of the same sizes, as a run on the device that the meta tensors stand for, and
// launches no kernel; the trainer's memory plan counts those allocations. (Not made: the buffers of a few bytes for
// each token that libtorch's CUDA kernels take while they compact and reduce, and scalars on the host.) The code of the
// head is the same for both. What differs is here, in head/products.cpp and in rows/dispatch.cpp: operations without a
// meta kernel in libtorch.
namespace distill::losses {

// Returns the device type whose kernels work on `tensor`: its own, or `planned` for a meta tensor.
c10::DeviceType kernel_device(const at::Tensor& tensor, c10::DeviceType planned);

// Throws `message` (on CUDA a device-side assertion, without a synchronisation) unless the bool scalar `condition` is
// true. Does nothing for a meta tensor.
void assert_async(const at::Tensor& condition, const char* message);

// Returns the number of true elements of mask_N: an int64 scalar. `kernels`, here and below: see kernel_device().
at::Tensor count_true(const at::Tensor& mask_N, c10::DeviceType kernels);

// Returns the positions of the `count` true elements of mask_N: int64 [count], without a synchronisation.
at::Tensor true_positions(const at::Tensor& mask_N, int64_t count, c10::DeviceType kernels);

// Returns source[index], the rows (or elements) of `source` that index_R names, or writes them into `out`.
at::Tensor gather_rows(const at::Tensor& source, const at::Tensor& index_R);
void gather_rows_out(at::Tensor out, const at::Tensor& source, const at::Tensor& index_R);

} // namespace distill::losses

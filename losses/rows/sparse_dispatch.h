#pragma once

#include "losses/rows/dispatch.h"
#include "losses/rows/sparse_args.h"

// These functions are for rows whose teacher is a few columns, on the device of their tensors.
namespace distill::losses {

// SparseTensors are a SparseTeacher as tensors of one device. N rows, K entries; R rows of logits.
struct SparseTensors {
  at::Tensor ids_NK; // int32; -1: not an entry. Top-k: a row's ids are distinct
  at::Tensor values_NK; // fp32, bf16, fp16 or fp64: log-probabilities in nats (top-k) or weights (samples)
  at::Tensor tail_N; // fp32 or fp64: the probability of all other columns (at most 0: none); undefined: samples
  at::Tensor index_R; // int64, which of the N belongs to each row; undefined: row r itself
  at::Tensor entry_logits_RK; // scratch of the compute type
};

// Throws for types that the row kernels do not know.
EntryType entry_type(c10::ScalarType type);

// Computes metrics and gradient of rows without teacher logits. `rows.saved_SR` is needed as scratch, the gradient may
// not the logits, and the logits are overwritten by those after bias and softcap. Otherwise as run_rows(); on meta
// tensors likewise. Throws c10::Error for an id that is no column, and for a column that a row of top-k names twice (on
// CUDA both end the kernel with a message).
void run_sparse_rows(
    const RowTensors& rows, const SparseTensors& teacher, LossOptions options, c10::DeviceType kernels);

// Captures top-k: `rows` has logits [R, V] after bias and softcap, metrics and `saved` (scratch). From the ids [R,
// K] (distinct) it makes entry_logits_RK into log-probabilities at the temperature, in nats, and writes the probability
// of all other columns to tail_R, of the compute type. The logits of the entries are lost.
void run_topk_log_probs(
    const RowTensors& rows, const SparseTensors& teacher, double temperature, const at::Tensor& tail_R,
    c10::DeviceType kernels);

// Adds the bias, of the logits' dtype, and applies the softcap, in place. A bias that excludes acts after the softcap.
void apply_bias_and_softcap(at::Tensor logits_RV, const at::Tensor& bias_V, double softcap);

} // namespace distill::losses

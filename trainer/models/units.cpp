#include "trainer/models/units.h"

#include "trainer/models/ops/rms_norm.h"

namespace distill::models {
namespace {

at::Tensor required_view(const UnitLayout& layout, const at::Tensor& flat, const char* param) {
  at::Tensor view = layout.view(flat, param);
  TORCH_CHECK(view.defined(), "unit '", layout.name, "' has no parameter '", param, "'");
  return view;
}

size_t find_unit(const std::vector<UnitLayout>& layouts, UnitKind kind) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].kind == kind || layouts[i].kind == UnitKind::kTiedEmbeddingHead) {
      return i;
    }
  }
  TORCH_CHECK(false, "the model has no such unit among ", layouts.size());
}

} // namespace

at::Tensor embedding_weight(const UnitLayout& layout, const at::Tensor& flat) {
  return required_view(layout, flat, "embedding");
}

at::Tensor final_norm_weight(const UnitLayout& layout, const at::Tensor& flat) {
  return required_view(layout, flat, "final_norm");
}

at::Tensor lm_head_weight(const UnitLayout& layout, const at::Tensor& flat) {
  return required_view(layout, flat, lm_head_param(layout.kind));
}

const char* lm_head_param(UnitKind kind) {
  return kind == UnitKind::kTiedEmbeddingHead ? "embedding" : "lm_head";
}

size_t embedding_unit(const std::vector<UnitLayout>& layouts) {
  return find_unit(layouts, UnitKind::kEmbedding);
}

size_t head_unit(const std::vector<UnitLayout>& layouts) {
  return find_unit(layouts, UnitKind::kHead);
}

int64_t FinalNormSaved::bytes() const {
  return x_NH.defined() ? static_cast<int64_t>(x_NH.nbytes() + rstd_N.nbytes()) : 0;
}

at::Tensor final_norm_forward(
    const ModelConfig& config, const at::Tensor& norm_H, const at::Tensor& x_NH, FinalNormSaved* saved) {
  RmsNormResult result = rms_norm_forward(x_NH, norm_H, config.final_norm_eps, config.final_norm_offset);
  if (saved != nullptr) {
    *saved = {x_NH, result.rstd_N};
  }
  return result.y_NH;
}

at::Tensor final_norm_backward(
    const ModelConfig& config, const at::Tensor& norm_H, const at::Tensor& dhidden_NH, const FinalNormSaved& saved,
    at::Tensor& grad_H) {
  return rms_norm_backward(
      dhidden_NH, saved.x_NH, saved.rstd_N, norm_H, grad_H, /*dresidual_NH=*/{}, config.final_norm_offset);
}

} // namespace distill::models

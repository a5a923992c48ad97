#pragma once

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/models/adapter.h"
#include "trainer/models/float8_products.h"
#include "trainer/models/layer_kind.h"

namespace distill::models {

// The one description of a decoder: its shape and its mathematics, read from a Hugging Face config.json, and what the
// run's configuration adds to it. Layout, loading, saving, passes, FLOPs and the plan read it kind by kind; none of
// them asks for the family.
struct ModelConfig {
  std::string model_type; // the family's name in Hugging Face's config.json, such as llama
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  double embedding_scale = 1; // the embedding's output is multiplied by it
  double final_norm_eps = 1e-6;
  double final_norm_offset = 0; // as of a NormSpec
  double final_softcap = 0; // of the logits, cap * tanh(logits / cap); 0: none
  std::vector<LayerKind> kinds;
  std::vector<int64_t> layers; // the kind of each layer, an index into `kinds`
  std::vector<RopeSpec> ropes;

  // What config.json asks the loss that balances the experts' load to be multiplied by; 0: there is none.
  double router_aux_loss = 0;
  double initializer_range = 0.02; // standard deviation of randomly initialised matrices
  std::string dtype = "float32"; // of the stored weights: float32 | float16 | bfloat16

  Float8Products float8; // of the run's configuration
  bool float8_weight_gradients = false; // likewise: of a student all of which is trained, in these products
  std::optional<AdapterSpec> adapter; // likewise; nullopt: all of the model is trained, or none of it

  int64_t num_layers() const {
    return static_cast<int64_t>(layers.size());
  }
  const LayerKind& layer(int64_t index) const {
    return kinds[static_cast<size_t>(layers[static_cast<size_t>(index)])];
  }
  // The number of layers of a kind.
  int64_t count_of(int64_t kind) const;
  // Gives the model `count` layers, all of this kind.
  void set_layers(LayerKind kind, int64_t count);
  // Gives the model these layers.
  void set_layers(const std::vector<LayerKind>& each);

  bool operator==(const ModelConfig&) const = default;
};

// UnimplementedError names a part of the description that nothing computes yet.
absl::Status check_computable(const ModelConfig& config);

// Refuses a sequence that is longer than max_position_embeddings. InvalidArgument names the limit.
absl::Status check_sequence_length(const ModelConfig& config, int64_t seq_len);

// Describes the MLPs: "ffn 6144", "128 experts of ffn 768 in 46 layers, 8 for each token, ffn 6144 in 2 layers".
std::string mlp_text(const ModelConfig& config);

// Describes the precision that the model computes in: "bfloat16", "bfloat16 with 120 of its 128 block products in
// float8".
std::string precision_text(const ModelConfig& config, c10::ScalarType compute_dtype);

} // namespace distill::models

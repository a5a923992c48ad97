#pragma once

#include "trainer/models/activation_policy.h"
#include "trainer/models/model_config.h"
#include "trainer/plan/timeline.h"

// The allocations of one decoder block, in the order of trainer/models/block.cpp and its ops.
namespace distill::plan {

struct BlockShape {
  models::ModelConfig config;
  int64_t tokens = 0; // N
  int64_t batch = 1; // rows of seq_len tokens
  int64_t seq_len = 0;
  int64_t element = 2; // bytes of the compute dtype
  bool cuda = true;
  bool packed = false;
  int64_t threads = 1;
};

// The tensors of models::BlockKept. `x` is another block's output: its owner moves it here.
struct KeptBuffers {
  Buffer x, attn_rstd, qkv, q_rstd, k_rstd, attn, lse, mid, mlp_rstd, gate_up;

  void label(Category category);
};

class BlockModel {
 public:
  BlockModel(Timeline& timeline, const BlockShape& shape) : timeline_(timeline), shape_(shape) {}

  // Returns y. What is kept goes to `kept` (x excepted); null: nothing is.
  Buffer forward(KeptBuffers* kept);
  // Returns dx; `kept` without its input-only tensors is rebuilt first. dy stays alive in the caller.
  Buffer backward(KeptBuffers kept, bool input_only);

  Buffer hidden(Category category = Category::kWorkspace) { // [N, H]
    return make(shape_.config.hidden_size, category);
  }
  Buffer statistics(int64_t per_token, Category category = Category::kWorkspace) { // fp32 [N, per_token]
    return timeline_.allocate(category, 4 * shape_.tokens * per_token);
  }
  // Partial sums of a norm's weight gradient, CUDA only.
  Buffer norm_partials(int64_t width);

 private:
  Buffer make(int64_t width, Category category = Category::kWorkspace) {
    return timeline_.allocate(category, shape_.tokens * width * shape_.element);
  }
  Buffer floats(int64_t width) { // [N, width] in fp32, for products on the CPU that accumulate in fp32
    return timeline_.allocate(Category::kWorkspace, shape_.tokens * width * 4);
  }
  int64_t q_width() const {
    return shape_.config.num_heads * shape_.config.head_dim;
  }
  int64_t kv_width() const {
    return shape_.config.num_kv_heads * shape_.config.head_dim;
  }
  void forward_to_gate_up(KeptBuffers& kept);
  void attention_forward(KeptBuffers& kept);
  void attention_backward();
  void weight_gradient(int64_t outputs, int64_t inputs);

  Timeline& timeline_;
  const BlockShape& shape_;
};

} // namespace distill::plan

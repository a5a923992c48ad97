#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace distill::models {

// The matrix products of each block of a model, in the order of the block's layout, by the names of their weights
// there: "qkv", "o", "gate_up", "down" (block_products in layout.h).
using BlockProducts = std::vector<std::vector<std::string>>;

// One product of one block.
struct BlockProduct {
  int64_t block = 0;
  std::string product;

  bool operator==(const BlockProduct&) const = default;
};

// The products of a model that run in float8 (trainer/models/ops/float8.h). All others, embedding, attention, norms and
// lm_head run in the compute dtype.
class Float8Products {
 public:
  Float8Products() = default; // none

  // Makes the choice of all of `products` but the exceptions. Each is a text that names a product in every block that
  // has it ("down"), all products of a block or of a range of blocks ("0", "0-3"), or both ("3.down", "0-3.qkv").
  // InvalidArgument names an exception that is not understood, or that names no block of the model.
  static absl::StatusOr<Float8Products> all_but(
      absl::Span<const std::string> exceptions, const BlockProducts& products);

  bool any() const;
  bool contains(int64_t block, const std::string& product) const;
  bool any_of(int64_t block) const;
  void remove(const BlockProduct& product);
  void add(const BlockProduct& product);
  int64_t count() const;

  bool operator==(const Float8Products&) const = default;

 private:
  std::vector<std::set<std::string>> blocks_;
};

// Returns the exceptions that leave out exactly those of `all` which are not in `float8`, as short as they can be
// written.
std::vector<std::string> exceptions_of(const Float8Products& float8, const BlockProducts& all);

} // namespace distill::models

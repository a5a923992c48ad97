#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>
#include <vector>

#include "data/base/enum_names.h"

namespace distill::models {

// The matrix products of a decoder block, by the names of their weights in the block's layout.
enum class Product {
  kQkv,
  kO,
  kGateUp,
  kDown,
};
constexpr auto enum_names(Product) {
  return base::names_of<Product>("qkv", "o", "gate_up", "down");
}
inline constexpr int kProducts = enum_names(Product{}).size();

// One product of one block.
struct BlockProduct {
  int64_t block = 0;
  Product product = Product::kQkv;

  bool operator==(const BlockProduct&) const = default;
};

// Which of a model's products run in float8 (trainer/models/ops/float8.h). All others, embedding, attention, norms and
// lm_head run in the compute dtype.
class Float8Products {
 public:
  Float8Products() = default; // none

  // All products of `blocks` blocks but the exceptions, each a text that names a product in every block ("down"), all
  // products of a block or of a range of blocks ("0", "0-3"), or both ("3.down", "0-3.qkv"). InvalidArgument says which
  // exception is not understood, or names no block of the model.
  static absl::StatusOr<Float8Products> all_but(absl::Span<const std::string> exceptions, int64_t blocks);

  bool any() const;
  bool contains(int64_t block, Product product) const;
  bool any_of(int64_t block) const;
  void remove(BlockProduct product);
  void add(BlockProduct product);
  int64_t count() const;

  bool operator==(const Float8Products&) const = default;

 private:
  std::vector<std::vector<bool>> products_; // [blocks][kProducts]
};

// The exceptions that leave out exactly the products which are not in `products`, as short as they can be written.
std::vector<std::string> exceptions_of(const Float8Products& products, int64_t blocks);

} // namespace distill::models

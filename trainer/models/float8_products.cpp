#include "trainer/models/float8_products.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace distill::models {
namespace {

struct BlockRange {
  int64_t first = 0;
  int64_t last = 0; // inclusive
};

std::optional<BlockRange> parse_blocks(const std::string& text) {
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  BlockRange range;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &range.first) || !absl::SimpleAtoi(ends.back(), &range.last) ||
      range.first < 0 || range.last < range.first) {
    return std::nullopt;
  }
  return range;
}

std::string blocks_text(int64_t first, int64_t last) {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

} // namespace

absl::StatusOr<Float8Products> Float8Products::all_but(absl::Span<const std::string> exceptions, int64_t blocks) {
  Float8Products products;
  products.products_.assign(static_cast<size_t>(blocks), std::vector<bool>(kProducts, true));
  std::vector<std::string> unknown, beyond; // entries that are not understood, and those of blocks that there are not
  for (const std::string& exception : exceptions) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(exception, absl::MaxSplits('.', 1));
    const bool has_dot = exception.find('.') != std::string::npos;
    BlockRange range{0, blocks - 1};
    std::optional<Product> product = base::enum_named<Product>(has_dot ? parts.second : parts.first);
    const bool names_blocks = has_dot || !product;
    const auto named = names_blocks ? parse_blocks(parts.first) : std::optional(range);
    if ((has_dot && !product) || !named) {
      unknown.push_back(absl::StrCat("'", exception, "'"));
      continue;
    }
    range = *named;
    if (range.last >= blocks) {
      beyond.push_back(absl::StrCat("'", exception, "'"));
      continue;
    }
    for (int64_t block = range.first; block <= range.last; ++block) {
      for (int index = 0; index < kProducts; ++index) {
        if (!product || static_cast<int>(*product) == index) {
          products.remove({block, static_cast<Product>(index)});
        }
      }
    }
  }
  std::vector<std::string> problems;
  if (!unknown.empty()) {
    problems.push_back(absl::StrCat(
        "expected a product (", base::enum_choices<Product>(),
        "), a block or range of blocks (0, 0-3), or both (3.down, 0-3.qkv), found ", absl::StrJoin(unknown, ", ")));
  }
  if (!beyond.empty()) {
    problems.push_back(absl::StrCat("expected blocks from 0 to ", blocks - 1, ", found ", absl::StrJoin(beyond, ", ")));
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  }
  return products;
}

bool Float8Products::contains(int64_t block, Product product) const {
  const auto at = static_cast<size_t>(block);
  return at < products_.size() && products_[at][static_cast<size_t>(product)];
}

bool Float8Products::any_of(int64_t block) const {
  const auto at = static_cast<size_t>(block);
  return at < products_.size() && std::find(products_[at].begin(), products_[at].end(), true) != products_[at].end();
}

bool Float8Products::any() const {
  return count() > 0;
}

int64_t Float8Products::count() const {
  int64_t count = 0;
  for (const std::vector<bool>& block : products_) {
    count += std::count(block.begin(), block.end(), true);
  }
  return count;
}

void Float8Products::remove(BlockProduct product) {
  products_.at(static_cast<size_t>(product.block)).at(static_cast<size_t>(product.product)) = false;
}

void Float8Products::add(BlockProduct product) {
  const auto block = static_cast<size_t>(product.block);
  if (products_.size() <= block) {
    products_.resize(block + 1, std::vector<bool>(kProducts, false));
  }
  products_[block].at(static_cast<size_t>(product.product)) = true;
}

std::vector<std::string> exceptions_of(const Float8Products& products, int64_t blocks) {
  std::vector<std::string> exceptions;
  // Whole blocks first, then each product's ranges in the other blocks.
  const auto whole = [&](int64_t block) { return !products.any_of(block); };
  const auto add_ranges = [&](const auto& left_out, const std::string& suffix) {
    for (int64_t block = 0; block < blocks; ++block) {
      if (left_out(block)) {
        int64_t last = block;
        while (last + 1 < blocks && left_out(last + 1)) {
          ++last;
        }
        exceptions.push_back(blocks_text(block, last) + suffix);
        block = last;
      }
    }
  };
  add_ranges(whole, "");
  for (int index = 0; index < kProducts; ++index) {
    const auto product = static_cast<Product>(index);
    bool in_all = true, in_another = false; // left out of every block; of a block that is not left out as a whole
    for (int64_t block = 0; block < blocks; ++block) {
      in_all = in_all && !products.contains(block, product);
      in_another = in_another || (!whole(block) && !products.contains(block, product));
    }
    if (in_all && in_another) {
      exceptions.push_back(base::enum_name(product));
      continue;
    }
    add_ranges(
        [&](int64_t block) { return !whole(block) && !products.contains(block, product); },
        absl::StrCat(".", base::enum_name(product)));
  }
  return exceptions;
}

} // namespace distill::models

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

// The names of all products, each once, in the order in which the blocks have them.
std::vector<std::string> names_of(const BlockProducts& products) {
  std::vector<std::string> names;
  for (const std::vector<std::string>& block : products) {
    for (const std::string& name : block) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

// "qkv, o or down", for errors.
std::string choices(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    absl::StrAppend(&text, text.empty() ? "" : name == names.back() ? " or " : ", ", name);
  }
  return text;
}

std::string blocks_text(int64_t first, int64_t last) {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

} // namespace

absl::StatusOr<Float8Products> Float8Products::all_but(
    absl::Span<const std::string> exceptions, const BlockProducts& products) {
  const auto blocks = static_cast<int64_t>(products.size());
  const std::vector<std::string> names = names_of(products);
  Float8Products float8;
  for (const std::vector<std::string>& block : products) {
    float8.blocks_.emplace_back(block.begin(), block.end());
  }
  std::vector<std::string> unknown, beyond; // entries that are not understood, and blocks beyond the last
  for (const std::string& exception : exceptions) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(exception, absl::MaxSplits('.', 1));
    const bool has_dot = exception.find('.') != std::string::npos;
    BlockRange range{0, blocks - 1};
    const std::string& product = has_dot ? parts.second : parts.first;
    const bool is_product = std::find(names.begin(), names.end(), product) != names.end();
    const auto named = has_dot || !is_product ? parse_blocks(parts.first) : std::optional(range);
    if ((has_dot && !is_product) || !named) {
      unknown.push_back(absl::StrCat("'", exception, "'"));
      continue;
    }
    range = *named;
    if (range.last >= blocks) {
      beyond.push_back(absl::StrCat("'", exception, "'"));
      continue;
    }
    for (int64_t block = range.first; block <= range.last; ++block) {
      std::set<std::string>& own = float8.blocks_[static_cast<size_t>(block)];
      if (is_product) {
        own.erase(product);
      } else {
        own.clear();
      }
    }
  }
  std::vector<std::string> problems;
  if (!unknown.empty()) {
    problems.push_back(absl::StrCat(
        "expected a product (", choices(names),
        "), a block or range of blocks (0, 0-3), or both (3.down, 0-3.qkv), found ", absl::StrJoin(unknown, ", ")));
  }
  if (!beyond.empty()) {
    problems.push_back(absl::StrCat("expected blocks from 0 to ", blocks - 1, ", found ", absl::StrJoin(beyond, ", ")));
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  }
  return float8;
}

bool Float8Products::contains(int64_t block, const std::string& product) const {
  const auto at = static_cast<size_t>(block);
  return at < blocks_.size() && blocks_[at].contains(product);
}

bool Float8Products::any_of(int64_t block) const {
  const auto at = static_cast<size_t>(block);
  return at < blocks_.size() && !blocks_[at].empty();
}

bool Float8Products::any() const {
  return count() > 0;
}

int64_t Float8Products::count() const {
  int64_t count = 0;
  for (const std::set<std::string>& block : blocks_) {
    count += static_cast<int64_t>(block.size());
  }
  return count;
}

void Float8Products::remove(const BlockProduct& product) {
  blocks_.at(static_cast<size_t>(product.block)).erase(product.product);
}

void Float8Products::add(const BlockProduct& product) {
  const auto block = static_cast<size_t>(product.block);
  if (blocks_.size() <= block) {
    blocks_.resize(block + 1);
  }
  blocks_[block].insert(product.product);
}

std::vector<std::string> exceptions_of(const Float8Products& float8, const BlockProducts& all) {
  const auto blocks = static_cast<int64_t>(all.size());
  std::vector<std::string> exceptions;
  // Whole blocks come first, then each product's ranges in the other blocks.
  const auto whole = [&](int64_t block) { return !float8.any_of(block); };
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
  for (const std::string& product : names_of(all)) {
    const auto left_out = [&](int64_t block) {
      const std::vector<std::string>& own = all[static_cast<size_t>(block)];
      return std::find(own.begin(), own.end(), product) != own.end() && !float8.contains(block, product);
    };
    bool in_all = true, in_another = false; // left out of every block; of a block that is not left out as a whole
    for (int64_t block = 0; block < blocks; ++block) {
      in_all = in_all && !float8.contains(block, product);
      in_another = in_another || (!whole(block) && left_out(block));
    }
    if (in_all && in_another) {
      exceptions.push_back(product);
      continue;
    }
    add_ranges([&](int64_t block) { return !whole(block) && left_out(block); }, absl::StrCat(".", product));
  }
  return exceptions;
}

} // namespace distill::models

#include "trainer/hf/folder_weights.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/match.h>

#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

constexpr size_t kNamesListed = 20;
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool is_weight_dtype(std::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void list(std::string& message, const char* title, std::vector<std::string> names) {
  if (names.empty()) {
    return;
  }
  std::sort(names.begin(), names.end());
  const size_t total = names.size();
  names.resize(std::min(total, kNamesListed));
  absl::StrAppend(&message, "\n  ", title, " (", total, "): ", absl::StrJoin(names, ", "));
  if (total > kNamesListed) {
    absl::StrAppend(&message, ", and ", total - kNamesListed, " more");
  }
}

// Compares a folder's tensors with those that the configuration describes.
class TensorCheck {
 public:
  TensorCheck(const ModelFiles& files, const models::ModelConfig& config) : files_(files), config_(config) {}

  absl::Status run(const std::string& folder, std::vector<std::string>* notes) {
    for (const models::UnitLayout& unit : models::unit_layouts(config_)) {
      for (const models::ParamLayout& param : unit.params) {
        for (const models::ParamPart& part : param.parts) {
          expect(part.hf_name, models::part_shape(param, part));
        }
      }
    }
    for (const auto& [name, file] : files_.file_of) {
      if (!expected_.contains(name)) {
        classify_extra(name);
      }
    }
    if (notes != nullptr) {
      notes->insert(notes->end(), notes_.begin(), notes_.end());
    }
    std::string message;
    list(message, "missing", missing_);
    list(message, "unexpected", unexpected_);
    list(message, "of another shape", misshapen_);
    list(message, "of a dtype that is not read (F32, F16, BF16 are)", mistyped_);
    if (message.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": its tensors are not those of its config.json (", config_.model_type, "):", message));
  }

 private:
  void expect(const std::string& name, const std::vector<int64_t>& shape) {
    expected_.insert(name);
    const TensorInfo* found = files_.find(name);
    if (found == nullptr && name == kEmbedding && config_.tie_word_embeddings && files_.find(kHead) != nullptr) {
      found = files_.find(kHead); // some programs write the shared tensor under this name
      expected_.insert(kHead);
    }
    if (found == nullptr) {
      missing_.push_back(name);
    } else if (found->shape != shape) {
      misshapen_.push_back(
          absl::StrCat(name, " (", shape_text(shape), " expected, ", shape_text(found->shape), " found)"));
    } else if (!is_weight_dtype(found->dtype)) {
      mistyped_.push_back(absl::StrCat(name, " (", found->dtype, ")"));
    }
  }

  void classify_extra(const std::string& name) {
    if (absl::EndsWith(name, "rotary_emb.inv_freq")) {
      notes_.push_back(absl::StrCat(name, ": ignored, computed from config.json"));
    } else if (name == kHead && config_.tie_word_embeddings) {
      notes_.push_back(absl::StrCat(name, ": ignored, the embedding is the head (tie_word_embeddings)"));
    } else {
      unexpected_.push_back(name);
    }
  }

  const ModelFiles& files_;
  const models::ModelConfig& config_;
  absl::flat_hash_set<std::string> expected_;
  std::vector<std::string> missing_, unexpected_, misshapen_, mistyped_, notes_;
};

// "[3, 17]" for an element's index in a tensor of that shape.
std::string position_text(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<int64_t> position(shape.size());
  for (size_t dim = shape.size(); dim > 0; --dim) {
    position[dim - 1] = index % shape[dim - 1];
    index /= shape[dim - 1];
  }
  return shape_text(position);
}

class HfWeights : public models::WeightSource {
 public:
  explicit HfWeights(ModelFiles files) : files_(std::move(files)) {}

  absl::Status status() const override {
    std::vector<std::string> lines;
    for (const auto& [name, bad] : bad_) {
      if (lines.size() == kNamesListed) {
        lines.push_back(absl::StrCat("  and ", bad_.size() - kNamesListed, " more tensors"));
        break;
      }
      const SafetensorsFile& file = files_.files[files_.file_of.at(name)];
      lines.push_back(absl::StrFormat(
          "  %s: tensor %s: expected finite weights, found %d NaN or infinite value(s), the first at %s", file.path(),
          name, bad.count, position_text(bad.first, file.find(name)->shape)));
    }
    return lines.empty()
        ? absl::OkStatus()
        : absl::InvalidArgumentError(absl::StrCat(
              "weights that are not finite cannot be trained or evaluated:\n", absl::StrJoin(lines, "\n")));
  }

 protected:
  void copy_tensor(const models::FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    auto found = files_.file_of.find(piece.part->hf_name);
    if (found == files_.file_of.end() && piece.part->hf_name == kEmbedding) {
      found = files_.file_of.find(kHead);
    }
    TORCH_CHECK(found != files_.file_of.end(), "tensor '", piece.part->hf_name, "' is not in the model's files");
    const SafetensorsFile& file = files_.files[found->second];
    NonFinite bad;
    file.copy_elements(*file.find(found->first), first, std::move(dst), &bad);
    if (bad.count > 0) {
      const auto [entry, is_new] = bad_.emplace(found->first, bad);
      if (!is_new) {
        entry->second.count += bad.count;
        entry->second.first = std::min(entry->second.first, bad.first);
      }
    }
  }

 private:
  ModelFiles files_;
  mutable std::map<std::string, NonFinite> bad_; // by tensor; weights are read by one thread
};

} // namespace

absl::StatusOr<std::unique_ptr<models::WeightSource>> open_weights(
    const std::string& folder, const models::ModelConfig& config, std::vector<std::string>* notes) {
  ASSIGN_OR_RETURN(ModelFiles files, open_model_files(folder));
  RETURN_IF_ERROR(TensorCheck(files, config).run(folder, notes));
  return std::make_unique<HfWeights>(std::move(files));
}

} // namespace distill::hf

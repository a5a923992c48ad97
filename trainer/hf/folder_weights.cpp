#include "trainer/hf/folder_weights.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/match.h>

#include "data/base/status_macros.h"
#include "trainer/hf/stored_model.h"
#include "trainer/hf/text_config.h"

namespace distill::hf {
namespace {

constexpr size_t kNamesListed = 20; // in an error
constexpr size_t kNamesNoted = 6; // in a line of the log

std::string shape_text(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void list(std::string& message, const char* title, const std::vector<std::string>& names) {
  if (!names.empty()) {
    absl::StrAppend(&message, "\n  ", title, " (", names.size(), "): ", names_text(names, kNamesListed));
  }
}

// Buffers that programs have stored, and that are computed from config.json.
bool is_computed(const std::string& name) {
  return absl::StrContains(name, "rotary_emb.inv_freq") || absl::EndsWith(name, "rotary_emb.cos_cached") ||
      absl::EndsWith(name, "rotary_emb.sin_cached") || absl::EndsWith(name, "position_ids");
}

// Compares a folder's tensors with those that the configuration describes.
class TensorCheck {
 public:
  TensorCheck(const ModelFiles& files, const models::ModelConfig& config, bool is_multimodal)
      : files_(files), config_(config), is_multimodal_(is_multimodal) {}

  absl::Status run(const std::string& folder, Notes* notes) {
    for (const models::UnitLayout& unit : models::unit_layouts(config_)) {
      for (const models::ParamLayout& param : unit.params) {
        for (const models::ParamPart& part : param.parts) {
          expect(part.hf_name, models::part_shape(param, part));
        }
      }
    }
    for (const auto& [name, file] : files_.file_of) {
      if (!used_.contains(name)) {
        classify_extra(name);
      }
    }
    if (is_multimodal_ && used_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, ": no tensor of its text model (", config_.model_type, "): one of these prefixes is expected: ",
          decoder_prefixes(), "; found (", outside_.size(), "): ", names_text(outside_, kNamesListed)));
    }
    if (notes != nullptr) {
      add_notes(folder, *notes);
    }
    std::string message;
    list(message, "missing", missing_);
    list(message, "unexpected inside the model", inside_);
    list(message, "of another shape", misshapen_);
    list(message, "of a dtype that is not read (F32, F16, BF16 are)", mistyped_);
    if (message.empty()) {
      return absl::OkStatus();
    }
    if (std::find(missing_.begin(), missing_.end(), files_.text.stored(kHeadTensor)) != missing_.end()) {
      absl::StrAppend(
          &message, "\n  a model whose head is its embedding has tie_word_embeddings: true in its config.json");
    }
    if (!inside_.empty()) {
      absl::StrAppend(
          &message,
          "\n  unexpected tensors would change the model's result; if it is right without them, save it without them: "
          "from_pretrained() and save_pretrained() of transformers leave them out");
    }
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": its tensors are not those of its config.json (", config_.model_type, "):", message));
  }

  // The names by which the files have tensors of the model that are named otherwise there: the model's name -> theirs.
  std::map<std::string, std::string> take_renamed() {
    return std::move(renamed_);
  }

 private:
  void expect(const std::string& name, const std::vector<int64_t>& shape) {
    std::string stored = stored_name(files_, name);
    const bool is_table = config_.tie_word_embeddings && name == kEmbeddingTensor;
    if (stored.empty() && is_table) {
      stored = stored_name(files_, kHeadTensor); // some programs write the shared tensor under this name
    } else if (is_table) {
      equal_head_ = stored_name(files_, kHeadTensor);
    }
    if (stored.empty()) {
      missing_.push_back(files_.text.stored(name));
      return;
    }
    used_.insert(stored);
    if (stored != name) {
      renamed_[name] = stored;
    }
    const TensorInfo& found = *files_.find(stored);
    if (found.shape != shape) {
      misshapen_.push_back(
          absl::StrCat(stored, " (", shape_text(shape), " expected, ", shape_text(found.shape), " found)"));
    } else if (!is_weight_dtype(found.dtype)) {
      mistyped_.push_back(absl::StrCat(stored, " (", found.dtype, ")"));
    }
    if (files_.unlisted.contains(stored)) {
      unlisted_.push_back(stored);
    }
  }

  void classify_extra(const std::string& name) {
    if (name == equal_head_) {
      return; // the embedding, which is the head, has the same values
    }
    const std::optional<std::string> own = files_.text.own(name);
    std::vector<std::string>& list = !own                             ? outside_
        : is_computed(name)                                           ? computed_
        : is_inside(*own, config_) && !files_.unlisted.contains(name) ? inside_
                                                                      : outside_;
    list.push_back(name);
  }

  void add_notes(const std::string& folder, Notes& notes) const {
    const auto note = [&](const std::vector<std::string>& names, const char* text, bool is_warning) {
      if (!names.empty()) {
        notes.push_back(
            {absl::StrCat(folder, ": ", text, " (", names.size(), "): ", names_text(names, kNamesNoted)), is_warning});
      }
    };
    note(computed_, "stored tensors that are not read, since they are computed from config.json", /*is_warning=*/false);
    if (is_multimodal_) {
      note(outside_, "tensors that are not of the text model, and that saved models keep", /*is_warning=*/false);
    } else {
      note(
          outside_, "tensors left out, since no part of the model that config.json describes has them",
          /*is_warning=*/true);
    }
    note(
        unlisted_,
        "tensors of the model that model.safetensors.index.json does not list, and that are read all the same",
        /*is_warning=*/true);
    if (!equal_head_.empty()) {
      notes.push_back(
          {absl::StrCat(folder, ": ", equal_head_, " equals the embedding and is not read (tie_word_embeddings)")});
    }
    std::vector<std::string> renamed;
    for (const auto& [name, stored] : renamed_) {
      const bool is_expected = is_multimodal_ && stored == files_.text.stored(name);
      // In the files of a tied model, embedding and head are names of one tensor.
      if (!is_expected && stored != files_.text.stored(kHeadTensor)) {
        renamed.push_back(absl::StrCat(name, " from ", stored));
      }
    }
    note(renamed, "tensors read under another name", /*is_warning=*/false);
  }

  const ModelFiles& files_;
  const models::ModelConfig& config_;
  bool is_multimodal_;
  absl::flat_hash_set<std::string> used_; // names in the files
  std::map<std::string, std::string> renamed_;
  std::string equal_head_; // of a tied model that has both; empty: it has not
  std::vector<std::string> missing_, inside_, misshapen_, mistyped_; // errors
  std::vector<std::string> computed_, outside_, unlisted_; // notes
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
  HfWeights(ModelFiles files, std::map<std::string, std::string> renamed)
      : files_(std::move(files)), renamed_(std::move(renamed)) {}

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
    const auto renamed = renamed_.find(piece.part->hf_name);
    const auto found = files_.file_of.find(renamed == renamed_.end() ? piece.part->hf_name : renamed->second);
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
  std::map<std::string, std::string> renamed_; // the model's name -> the one in the files, where they differ
  mutable std::map<std::string, NonFinite> bad_; // by tensor; weights are read by one thread
};

} // namespace

absl::StatusOr<std::unique_ptr<models::WeightSource>> open_weights(
    const std::string& folder, const models::ModelConfig& config, Notes* notes) {
  ASSIGN_OR_RETURN(ModelFiles files, open_model_files(folder, notes));
  TensorCheck check(files, config, is_multimodal_folder(folder));
  RETURN_IF_ERROR(check.run(folder, notes));
  return std::make_unique<HfWeights>(std::move(files), check.take_renamed());
}

std::string names_text(std::vector<std::string> names, size_t most) {
  std::sort(names.begin(), names.end());
  const size_t total = names.size();
  names.resize(std::min(total, most));
  return absl::StrCat(
      absl::StrJoin(names, ", "), total > most ? absl::StrCat(", and ", total - most, " more") : std::string());
}

} // namespace distill::hf

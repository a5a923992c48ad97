#include "trainer/hf/peft_folder.h"

#include <ATen/ATen.h>
#include <absl/strings/match.h>
#include <absl/strings/str_replace.h>

#include <filesystem>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/peft_experts.h"
#include "trainer/hf/safetensors.h"
#include "trainer/models/layout.h"

namespace distill::hf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBaseKey = "distill_base"; // of the metadata
constexpr size_t kNamesListed = 20;
constexpr std::string_view kHead = "base_model.model.lm_head.weight";
constexpr std::string_view kEmbedding = "base_model.model.model.embed_tokens.weight";

// The name of a tensor of trained_layouts() in the files.
std::string stored_name(const std::string& own) {
  return absl::StartsWith(own, models::kPeftPrefix) ? own : absl::StrCat(models::kPeftPrefix, own);
}

// The name that the newest peft gives a tensor, whatever version has written it.
std::string normalised(std::string name) {
  name = absl::StrReplaceAll(
      name,
      {{".lora_A.default.", ".lora_A."},
       {".lora_B.default.", ".lora_B."},
       {".modules_to_save.default.", "."},
       {".modules_to_save.", "."},
       {".language_model.model.", ".model."},
       {".model.language_model.", ".model."}});
  return absl::StartsWith(name, models::kPeftPrefix) ? name : absl::StrCat(models::kPeftPrefix, name);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

class PeftWeights : public models::WeightSource {
 public:
  PeftWeights(SafetensorsFile file, std::map<std::string, std::string> stored)
      : file_(std::move(file)), stored_(std::move(stored)) {}

  absl::Status status() const override {
    std::vector<std::string> names(bad_.begin(), bad_.end());
    return names.empty() ? absl::OkStatus()
                         : absl::InvalidArgumentError(absl::StrCat(
                               file_.path(), ": expected finite weights, found NaN or infinite values in ",
                               names_text(std::move(names), kNamesListed)));
  }

 protected:
  void copy_tensor(const models::FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    const std::string name = stored_name(piece.part->hf_name);
    if (stored_.contains(name) && !piece.part->groups_last) {
      read(name, first, std::move(dst));
      return;
    }
    if (whole_name_ != name) {
      whole_.reset();
      whole_ = whole(*piece.param, *piece.part, name);
      whole_name_ = name;
    }
    dst.copy_(whole_.flatten().narrow(0, first, dst.numel()));
  }

 private:
  // `name`: normalised.
  void read(const std::string& name, int64_t first, at::Tensor dst) const {
    const std::string& stored = stored_.at(name);
    NonFinite bad;
    file_.copy_elements(*file_.find(stored), first, std::move(dst), &bad);
    if (bad.count > 0) {
      bad_.insert(stored);
    }
  }

  at::Tensor read_whole(const std::string& name) const {
    at::Tensor values = at::empty({file_.find(stored_.at(name))->numel()}, at::kFloat);
    read(name, 0, values);
    return values;
  }

  // A tensor whose elements have another order in the file, or that is several there.
  at::Tensor whole(const models::ParamLayout& param, const models::ParamPart& part, const std::string& name) const {
    return stored_.contains(name) ? models::rows_of_groups(param, read_whole(name))
                                  : joined_experts(param, tensors_of_experts(param, part), [&](const std::string& own) {
                                      return read_whole(own);
                                    });
  }

  SafetensorsFile file_;
  std::map<std::string, std::string> stored_; // normalised name -> the file's
  mutable std::set<std::string> bad_; // weights are read by one thread
  mutable std::string whole_name_; // normalised: the last tensor that whole() has made
  mutable at::Tensor whole_;
};

absl::StatusOr<std::map<std::string, std::string>> match_tensors(
    const SafetensorsFile& file, const models::ModelConfig& config) {
  std::map<std::string, std::string> stored;
  for (const auto& [name, info] : file.header().tensors) {
    stored[normalised(name)] = name;
  }
  std::map<std::string, std::string> unused = stored;
  std::vector<std::string> missing, misshapen, unexpected;
  const auto expect = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      missing.push_back(name);
      return;
    }
    unused.erase(name);
    const TensorInfo& info = *file.find(found->second);
    if (info.shape != shape) {
      misshapen.push_back(
          absl::StrCat(found->second, " (", shape_text(shape), " expected, ", shape_text(info.shape), " found)"));
    }
  };
  for (const models::UnitLayout& unit : models::trained_layouts(config)) {
    for (const models::ParamLayout& param : unit.params) {
      for (const models::ParamPart& part : param.parts) {
        const std::string name = stored_name(part.hf_name);
        if (param.groups > 1 && !stored.contains(name)) { // as older versions of transformers had it, or not at all
          const ExpertTensors own = tensors_of_experts(param, part);
          if (stored.contains(own.names.front())) {
            for (const std::string& tensor : own.names) {
              expect(tensor, own.shape);
            }
            continue;
          }
        }
        expect(name, models::part_shape(param, part));
      }
    }
  }
  const bool tied = config.tie_word_embeddings && config.adapter->trains_whole("model.embed_tokens.weight");
  for (const auto& [name, as_stored] : unused) {
    if (!tied || name != kHead) {
      unexpected.push_back(as_stored);
    }
  }
  std::string message;
  const auto list = [&message](const char* title, const std::vector<std::string>& names) {
    if (!names.empty()) {
      absl::StrAppend(&message, "\n  ", title, " (", names.size(), "): ", names_text(names, kNamesListed));
    }
  };
  list("missing", missing);
  list("of another shape", misshapen);
  list("unexpected", unexpected);
  if (!message.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": its tensors are not those that ", kPeftConfig, " describes for this base:", message,
        misshapen.empty() ? "" : "\n  an adapter fits the model alone from which it was trained"));
  }
  return stored;
}

// The two names of one matrix must have the same values.
absl::Status check_tied(const SafetensorsFile& file, const std::map<std::string, std::string>& stored) {
  const auto head = stored.find(std::string(kHead)), embedding = stored.find(std::string(kEmbedding));
  if (head == stored.end() || embedding == stored.end()) {
    return absl::OkStatus();
  }
  const auto read = [&](const std::string& name) {
    const TensorInfo& info = *file.find(name);
    at::Tensor values = at::empty({info.numel()}, at::kFloat);
    file.copy_elements(info, 0, values);
    return values;
  };
  return at::equal(read(head->second), read(embedding->second))
      ? absl::OkStatus()
      : absl::InvalidArgumentError(absl::StrCat(
            file.path(), ": expected equal tensors, since the model's embeddings are tied, found other values in ",
            head->second, " than in ", embedding->second));
}

absl::Status write_folder(
    const fs::path& folder, const PeftConfig& peft, const models::ModelConfig& config, const UnitFlat& units,
    const SaveAdapterOptions& options) {
  ASSIGN_OR_RETURN(const std::string dtype, safetensors_dtype(options.dtype));
  const std::vector<models::UnitLayout> layouts = models::trained_layouts(config);
  // Of a tied model the embedding's values are the lm_head's, too.
  const bool tied = config.tie_word_embeddings && config.adapter->trains_whole("model.embed_tokens.weight");
  std::vector<SafetensorsWriter::Entry> entries;
  for (const models::UnitLayout& layout : layouts) {
    for (const models::ParamLayout& param : layout.params) {
      for (const models::ParamPart& part : param.parts) {
        const TensorInfo info{dtype, models::part_shape(param, part), 0, 0};
        entries.emplace_back(stored_name(part.hf_name), info);
        if (tied && entries.back().first == kEmbedding) {
          entries.emplace_back(kHead, info);
        }
      }
    }
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!options.base.empty()) {
    metadata[kBaseKey] = options.base;
  }
  ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::create((folder / kPeftWeights).string(), std::move(entries), metadata));
  for (size_t i = 0; i < layouts.size(); ++i) {
    ASSIGN_OR_RETURN(const at::Tensor flat, units(i));
    for (const models::FlatPiece& piece : models::flat_pieces(layouts[i], 0, layouts[i].numel)) {
      at::Tensor values = flat.narrow(0, piece.flat_begin, piece.count).to(at::kCPU, options.dtype).contiguous();
      if (piece.part->groups_last) {
        values = models::groups_last(*piece.param, values);
      }
      const bool twice = tied && stored_name(piece.part->hf_name) == kEmbedding;
      for (int copies = 0; copies < (twice ? 2 : 1); ++copies) {
        RETURN_IF_ERROR(writer->append(values));
      }
    }
  }
  RETURN_IF_ERROR(writer->finish());
  ASSIGN_OR_RETURN(const PeftConfig named, with_expert_parameters(peft, config));
  RETURN_IF_ERROR(base::write_file((folder / kPeftConfig).string(), peft_config_text(named, *config.adapter)));
  return write_checksums(folder.string());
}

} // namespace

absl::StatusOr<std::unique_ptr<models::WeightSource>> open_adapter(
    const std::string& folder, const models::ModelConfig& config, const std::string& base) {
  const std::string path = absl::StrCat(folder, "/", kPeftWeights);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const bool pickled = fs::exists(fs::path(folder) / "adapter_model.bin", ignored);
    return absl::NotFoundError(absl::StrCat(
        folder, ": expected ", kPeftWeights, ", found ", pickled ? "adapter_model.bin" : "none",
        pickled ? "; save the adapter again with peft, which writes safetensors" : ""));
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  const auto& metadata = file.header().metadata;
  if (const auto own = metadata.find(kBaseKey); own != metadata.end() && !base.empty() && own->second != base) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": expected an adapter of this base (", base, "), found one of another (", own->second,
        "): the files of the base that it was trained from had another hash"));
  }
  ASSIGN_OR_RETURN(auto stored, match_tensors(file, config));
  if (config.tie_word_embeddings) {
    RETURN_IF_ERROR(check_tied(file, stored));
  }
  return std::make_unique<PeftWeights>(std::move(file), std::move(stored));
}

absl::Status save_adapter(
    const std::string& target, const PeftConfig& peft, const models::ModelConfig& config, const UnitFlat& units,
    const SaveAdapterOptions& options) {
  TORCH_CHECK(config.adapter.has_value(), "save_adapter: the model has no adapter");
  return write_model_folder(target, options.replace, [&](const std::string& folder) {
    return write_folder(folder, peft, config, units, options);
  });
}

void merge_adapter(
    const models::UnitLayout& layout, const at::Tensor& flat, const models::UnitLayout& trained_layout,
    const at::Tensor& trained) {
  for (const models::ParamLayout& param : trained_layout.params) {
    const at::Tensor values = trained_layout.view(trained, param.name);
    if (layout.find(param.name) != nullptr) {
      layout.view(flat, param.name).copy_(values);
      continue;
    }
    if (!param.adapter) {
      continue; // an A, which is read with its B
    }
    const std::string product = param.name.substr(0, param.name.find(models::kLoraB));
    const at::Tensor a_RI = trained_layout.view(trained, product + models::kLoraA);
    if (param.groups > 1) {
      const auto of_groups = [&param](const at::Tensor& rows) {
        return rows.view({param.groups, rows.size(0) / param.groups, rows.size(1)});
      };
      of_groups(layout.view(flat, product))
          .baddbmm_(of_groups(values), of_groups(a_RI), /*beta=*/1, /*alpha=*/param.adapter->scale);
      continue;
    }
    int64_t first = 0; // of the module's rows of A
    for (const models::ParamLayout& other : trained_layout.params) {
      if (&other == &param) {
        break;
      }
      first += other.adapter && absl::StartsWith(other.name, product + models::kLoraB) ? other.shape[1] : 0;
    }
    layout.view(flat, product)
        .narrow(0, param.adapter->first_row, param.shape[0])
        .addmm_(values, a_RI.narrow(0, first, param.shape[1]), /*beta=*/1, /*alpha=*/param.adapter->scale);
  }
}

UnitFlat merged_units(
    const models::ModelConfig& config, std::shared_ptr<const models::WeightSource> base, UnitFlat trained) {
  return [layouts = models::unit_layouts(config), trained_layouts = models::trained_layouts(config),
          base = std::move(base), trained = std::move(trained)](size_t unit) -> absl::StatusOr<at::Tensor> {
    ASSIGN_OR_RETURN(const at::Tensor own, trained(unit));
    at::Tensor flat = at::empty({layouts[unit].numel}, at::kFloat);
    base->copy_range(layouts[unit], 0, flat);
    merge_adapter(layouts[unit], flat, trained_layouts[unit], own.to(at::kCPU));
    return flat;
  };
}

} // namespace distill::hf

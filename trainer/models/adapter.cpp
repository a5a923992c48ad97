#include "trainer/models/adapter.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <set>

#include "trainer/models/layout.h"

namespace distill::models {
namespace {

// The adapter of experts: A and B of each expert lie one below the other, as their weights do. peft stores the A in
// this way, and the B as [rows, rank, experts].
void add_experts_adapter(UnitLayout& trained, const ParamLayout& product, const AdaptedModule& module) {
  TORCH_CHECK(
      module.first_row == 0 && module.rows == product.group_rows(),
      "an adapter of experts is one of their whole product");
  const auto add = [&](const std::string& name, const char* file, int64_t rows, int64_t columns, bool groups_last) {
    rows *= product.groups;
    add_param(
        trained, absl::StrCat(product.name, name), {rows, columns},
        {{absl::StrCat(kPeftPrefix, module.stored_name(), file), 0, rows, /*stacked=*/1, groups_last}});
    trained.params.back().groups = product.groups;
    trained.params.back().groups_per_token = product.groups_per_token;
  };
  add(kLoraA, ".lora_A.weight", module.rank, product.shape[1], /*groups_last=*/false);
  add(absl::StrCat(kLoraB, 0), ".lora_B.weight", module.rows, module.rank, /*groups_last=*/true);
  trained.params.back().adapter = AdapterPlace{0, module.scale};
}

// The adapters of one product of a block.
void add_adapters(UnitLayout& trained, const ParamLayout& product, const std::vector<const AdaptedModule*>& modules) {
  if (product.groups > 1) {
    TORCH_CHECK(modules.size() == 1, "experts' products have one adapter, found ", modules.size());
    return add_experts_adapter(trained, product, *modules.front());
  }
  std::vector<ParamPart> parts;
  int64_t rank = 0;
  for (const AdaptedModule* module : modules) {
    parts.push_back({absl::StrCat(kPeftPrefix, module->stored_name(), ".lora_A.weight"), rank, module->rank});
    rank += module->rank;
  }
  add_param(trained, absl::StrCat(product.name, kLoraA), {rank, product.shape[1]}, std::move(parts));
  for (size_t i = 0; i < modules.size(); ++i) {
    const AdaptedModule& module = *modules[i];
    add_param(
        trained, absl::StrCat(product.name, kLoraB, i), {module.rows, module.rank},
        {{absl::StrCat(kPeftPrefix, module.stored_name(), ".lora_B.weight"), 0, module.rows}});
    trained.params.back().adapter = AdapterPlace{module.first_row, module.scale};
  }
}

UnitLayout trained_part(const UnitLayout& unit, const AdapterSpec& adapter) {
  UnitLayout trained;
  trained.name = unit.name;
  trained.kind = unit.kind;
  trained.block = unit.block;
  for (const ParamLayout& param : unit.params) { // vectors first, as in every unit
    if (adapter.trains_whole(param.parts.front().hf_name)) {
      add_param(trained, param.name, param.shape, param.parts, param.initial);
    }
  }
  for (const ParamLayout& param : unit.params) {
    std::vector<const AdaptedModule*> modules;
    for (const AdaptedModule& module : adapter.modules) {
      if (module.block == unit.block && module.product == param.name) {
        modules.push_back(&module);
      }
    }
    if (!modules.empty()) {
      add_adapters(trained, param, modules);
    }
  }
  return trained;
}

} // namespace

bool AdapterSpec::trains_whole(const std::string& hf_name) const {
  return std::find(whole.begin(), whole.end(), hf_name) != whole.end();
}

std::vector<UnitLayout> trained_layouts(const ModelConfig& config) {
  std::vector<UnitLayout> units = unit_layouts(config);
  if (config.adapter) {
    for (UnitLayout& unit : units) {
      unit = trained_part(unit, *config.adapter);
    }
  }
  return units;
}

int64_t adapter_numel(const ModelConfig& config, int64_t block) {
  int64_t elements = 0;
  if (config.adapter) {
    for (const ParamLayout& param : trained_part(block_layout(config, block), *config.adapter).params) {
      elements += param.is_matrix ? param.active_numel() : 0;
    }
  }
  return elements;
}

std::string adapter_text(const AdapterSpec& adapter) {
  std::set<int64_t> ranks;
  std::set<std::string> names;
  std::set<double> scales;
  for (const AdaptedModule& module : adapter.modules) {
    ranks.insert(module.rank);
    scales.insert(module.scale);
    const absl::string_view name = absl::StripSuffix(module.name, ".weight"); // of a parameter
    names.emplace(name.substr(name.rfind('.') + 1));
  }
  std::string text = absl::StrFormat(
      "LoRA of rank %s on %d modules (%s), scale %s", absl::StrJoin(ranks, ", "), adapter.modules.size(),
      absl::StrJoin(names, ", "), absl::StrJoin(scales, ", "));
  if (adapter.dropout > 0) {
    absl::StrAppendFormat(&text, ", dropout %g", adapter.dropout);
  }
  return adapter.whole.empty() ? text
                               : absl::StrCat(text, ", trained as a whole: ", absl::StrJoin(adapter.whole, ", "));
}

} // namespace distill::models

#include "trainer/models/adapter.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <set>

#include "trainer/models/layout.h"

namespace distill::models {
namespace {

// The adapters of one product of a block.
void add_adapters(UnitLayout& trained, const ParamLayout& product, const std::vector<const AdaptedModule*>& modules) {
  std::vector<ParamPart> parts;
  int64_t rank = 0;
  for (const AdaptedModule* module : modules) {
    parts.push_back({absl::StrCat(kPeftPrefix, module->name, ".lora_A.weight"), rank, module->rank});
    rank += module->rank;
  }
  add_param(trained, absl::StrCat(product.name, kLoraA), {rank, product.shape[1]}, std::move(parts));
  for (size_t i = 0; i < modules.size(); ++i) {
    const AdaptedModule& module = *modules[i];
    add_param(
        trained, absl::StrCat(product.name, kLoraB, i), {module.rows, module.rank},
        {{absl::StrCat(kPeftPrefix, module.name, ".lora_B.weight"), 0, module.rows}});
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
      elements += param.is_matrix ? param.numel() : 0;
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
    names.insert(module.name.substr(module.name.rfind('.') + 1));
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

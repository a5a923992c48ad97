#include "trainer/setup/read_model.h"

#include "data/base/status_macros.h"
#include "trainer/config/lora.h"
#include "trainer/config/teachers.h"
#include "trainer/hf/config_json.h"
#include "trainer/models/layout.h"
#include "trainer/models/router_balance.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::trainer {
namespace {

constexpr int64_t kTile = 16; // the sizes of a float8 weight are multiples of it

// Float8 weights that have sizes for which the tensor cores have no product.
absl::Status check_sizes(const models::ModelConfig& config, const std::string& name) {
  std::vector<std::string> found, exceptions; // a line for each kind of product, of the first block that has it
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(config, block).params) {
      if (config.float8.contains(block, param.name) &&
          (param.group_rows() % kTile != 0 || param.shape[1] % kTile != 0)) {
        if (std::find(exceptions.begin(), exceptions.end(), param.name) == exceptions.end()) {
          exceptions.push_back(param.name);
          found.push_back(absl::StrFormat("%s of %d x %d", param.name, param.group_rows(), param.shape[1]));
        }
      }
    }
  }
  // A student's exceptions are whole blocks, and blocks are alike.
  return found.empty()
      ? absl::OkStatus()
      : absl::InvalidArgumentError(absl::StrFormat(
            "%s.dtype: float8: expected weights whose sizes are multiples of %d, found %s; %s", name, kTile,
            absl::StrJoin(found, ", "),
            name == "student"
                ? std::string("set student.dtype: auto")
                : absl::StrFormat("add %s to %s.float8_exceptions", absl::StrJoin(exceptions, ", "), name)));
}

// A model that is trained in float8 shards one byte for each element of a block (sharding/float8_weights.h).
absl::Status check_whole_blocks(const models::ModelConfig& config, const std::string& name) {
  if (!config.float8.any()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s.float8_exceptions: expected a block that stays in float8, found none of %d; set %s.dtype: auto", name,
        config.num_layers(), name));
  }
  std::vector<std::string> partial;
  for (const std::string& exception : models::exceptions_of(config.float8, models::block_products(config))) {
    if (exception.find_first_not_of("0123456789-") != std::string::npos) { // it names a product
      partial.push_back(exception);
    }
  }
  return partial.empty()
      ? absl::OkStatus()
      : absl::InvalidArgumentError(absl::StrFormat(
            "%s.float8_exceptions: expected blocks or ranges of blocks (0, 0-3), found products: %s; "
            "a block that is trained is in float8 as a whole or not at all",
            name, absl::StrJoin(partial, ", ")));
}

// The weights of experts are not trained in float8, but may be frozen in it below adapters.
absl::Status check_no_experts(const models::ModelConfig& config) {
  return models::router_count(config) == 0
      ? absl::OkStatus()
      : absl::InvalidArgumentError(
            "student.dtype: float8: expected a model without experts, whose gradients have no product in float8, or "
            "adapters (student.lora) on frozen experts, found " +
            describe_shape(config) + "; set student.dtype: auto");
}

// Takes the coefficient of the routers' loss from the run's configuration.
absl::Status set_router_loss(
    const config::ModelSection& section, const std::string& name, models::ModelConfig& config) {
  if (section.router_aux_loss == config::kAutomatic) {
    return absl::OkStatus();
  }
  if (models::router_count(config) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s.router_aux_loss: expected auto, since the model in %s has no experts, found %g", name, section.path,
        section.router_aux_loss));
  }
  config.router_aux_loss = section.router_aux_loss;
  return absl::OkStatus();
}

// `trains_all`: of a student: it has no adapters.
absl::StatusOr<models::ModelConfig> read_model(
    const config::ModelSection& section, const std::string& name, double softcap, bool trains_all, hf::Notes* notes) {
  const bool with_weights = section.init == config::ModelInit::kPretrained || section.reads_cache();
  ASSIGN_OR_RETURN(
      models::ModelConfig config,
      hf::read_model_config(section.folder(), {section.ignore_config_keys, with_weights}, notes));
  if (softcap != config::kAutomatic) {
    config.final_softcap = softcap;
  }
  RETURN_IF_ERROR(set_router_loss(section, name, config));
  if (section.reads_cache()) {
    return teacher_cache::head_only(std::move(config));
  }
  if (section.dtype != config::ComputeDtype::kFloat8) {
    return config;
  }
  auto products = models::Float8Products::all_but(section.float8_exceptions, models::block_products(config));
  if (!products.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".float8_exceptions: ", std::string(products.status().message())));
  }
  config.float8 = *std::move(products);
  RETURN_IF_ERROR(check_sizes(config, name));
  if (trains_all) {
    RETURN_IF_ERROR(check_no_experts(config));
    RETURN_IF_ERROR(check_whole_blocks(config, name));
  }
  return config;
}

} // namespace

absl::StatusOr<models::ModelConfig> read_student(const config::Config& config, hf::Notes* notes) {
  const bool has_adapter = config.trains_adapter();
  ASSIGN_OR_RETURN(
      models::ModelConfig student,
      read_model(config.student, "student", config.softcaps.student, /*trains_all=*/!has_adapter, notes));
  student.float8_weight_gradients = config.float8.weight_gradients && student.float8.any() && !has_adapter;
  if (has_adapter) {
    ASSIGN_OR_RETURN(student.adapter, config::resolve_student_adapter(config, student));
  }
  return student;
}

absl::StatusOr<models::ModelConfig> read_teacher_model(const config::Config& config, hf::Notes* notes) {
  ASSIGN_OR_RETURN(
      models::ModelConfig teacher,
      read_model(config.teacher, "teacher", config.softcaps.teacher, /*trains_all=*/false, notes));
  if (!config.teacher.adapter.empty() && !config.teacher.reads_cache()) {
    ASSIGN_OR_RETURN(teacher.adapter, config::resolve_teacher_adapter(config, teacher));
  }
  return teacher;
}

absl::StatusOr<TeacherSpec> read_teacher(
    const config::Config& config, hf::Notes* notes, const RunTokenizers* tokenizers) {
  if (!config.has_teacher()) {
    return TeacherSpec();
  }
  ASSIGN_OR_RETURN(models::ModelConfig model, read_teacher_model(config, notes));
  const int64_t rows = model.vocab_size;
  TeacherSpec teacher;
  if (config.teacher.reads_cache()) {
    ASSIGN_OR_RETURN(const teacher_cache::Manifest manifest, teacher_cache::read_manifest(config.teacher.cache));
    teacher = TeacherSpec::cached({std::move(model), nullptr}, manifest.rows, config.teacher.cache);
  } else {
    teacher = TeacherSpec::running({std::move(model), nullptr}, config.teacher.path);
  }
  RunTokenizers own;
  if (tokenizers == nullptr) {
    ASSIGN_OR_RETURN(own, read_tokenizers(config));
    tokenizers = &own;
  }
  // A student that cannot be read is reported where it is opened.
  const auto student =
      config.student.path.empty() ? absl::StatusOr<models::ModelConfig>(models::ModelConfig()) : read_student(config);
  if (student.ok()) {
    ASSIGN_OR_RETURN(Vocabulary vocabulary, tokenizers->vocabulary(student->vocab_size, rows));
    teacher.set_vocabulary(std::move(vocabulary));
  }
  return teacher;
}

absl::StatusOr<Teachers> read_teachers(const config::Config& config) {
  Teachers teachers;
  for (const config::Config& own : config::configs_of_teachers(config)) {
    ASSIGN_OR_RETURN(teachers.emplace_back(), read_teacher(own));
  }
  return teachers;
}

std::string describe_shape(const models::ModelConfig& config) {
  // Of a model with delta rules, the layers without one.
  const auto with_attention =
      std::find_if(config.kinds.begin(), config.kinds.end(), [](const models::LayerKind& kind) { return !kind.delta; });
  const models::AttentionSpec attention =
      with_attention == config.kinds.end() ? models::AttentionSpec() : with_attention->attention;
  std::string text = absl::StrFormat(
      "%s, vocabulary %d, hidden %d, %s, %d layers, %d heads of %d, %d kv heads, %s embeddings%s%s%s",
      config.model_type, config.vocab_size, config.hidden_size, models::mlp_text(config), config.num_layers(),
      attention.heads, attention.head_dim, attention.kv_heads, config.tie_word_embeddings ? "tied" : "untied",
      attention.qkv_bias ? ", qkv bias" : "", attention.qk_norm ? ", qk norm" : "",
      attention.output_gate ? ", gated output" : "");
  for (size_t i = 0; i < config.kinds.size(); ++i) {
    const models::AttentionSpec& spec = config.kinds[i].attention;
    if (const auto& delta = config.kinds[i].delta) {
      absl::StrAppendFormat(
          &text, ", gated delta rules of %d value heads of %d in %d layers", delta->value_heads, delta->value_dim,
          config.count_of(static_cast<int64_t>(i)));
    } else if (spec.window || !spec.rope) {
      absl::StrAppendFormat(
          &text, ", %s%s in %d layers", spec.window ? absl::StrFormat("windows of %d", *spec.window) : "",
          spec.rope ? "" : (spec.window ? " without rope" : "no rope"), config.count_of(static_cast<int64_t>(i)));
    }
  }
  return config.adapter ? absl::StrCat(text, "; ", models::adapter_text(*config.adapter)) : text;
}

std::string describe_model(
    const char* role, const config::ModelSection& section, const models::ModelConfig& config, at::ScalarType dtype) {
  const std::vector<models::UnitLayout> units = models::unit_layouts(config);
  const auto millions = [](int64_t parameters) { return static_cast<double>(parameters) / 1e6; };
  const int64_t all = models::parameter_count(units), active = models::active_parameter_count(units);
  return absl::StrFormat(
      "%s: %s%s (%s), %.1f M parameters%s%s, computes in %s; %s", role, section.path,
      section.adapter.empty() ? "" : absl::StrCat(" with the adapter ", section.adapter), base::enum_name(section.init),
      millions(all), active < all ? absl::StrFormat(" (%.1f M of them for each token)", millions(active)) : "",
      config.adapter
          ? absl::StrFormat(
                " and %.2f M of adapters", millions(models::parameter_count(models::trained_layouts(config))))
          : "",
      models::precision_text(config, dtype), describe_shape(config));
}

} // namespace distill::trainer

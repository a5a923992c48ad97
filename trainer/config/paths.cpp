#include "trainer/config/paths.h"

#include <absl/strings/str_cat.h>

#include <filesystem>

#include "data/base/output_path.h"
#include "data/shard_format.h"
#include "trainer/config/path_hints.h"
#include "trainer/config/teachers.h"
#include "trainer/hf/peft_config.h"

namespace distill::config {

namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool has_file_with_extension(const fs::path& folder, const std::string& extension) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == extension) {
      return true;
    }
  }
  return false;
}

class Paths {
 public:
  Paths(const Config& config, const CheckContext& context) : config_(config), context_(context) {}

  std::vector<Problem> run() {
    const bool capturing = context_.purpose == Purpose::kCapture;
    if (!capturing || !config_.student.path.empty()) {
      model("student", config_.student);
    }
    if (config_.has_list()) {
      teachers();
    } else {
      teacher();
    }
    if (context_.purpose == Purpose::kTrain || capturing) {
      data_sets("data.train", config_.data.train);
      run_folder();
    }
    if (context_.purpose == Purpose::kTrain) {
      data_sets("onpolicy.prompts", config_.onpolicy.prompts);
    }
    if (context_.purpose == Purpose::kQuantize && config_.data.eval.empty()) {
      data_sets("data.train", config_.data.train);
    }
    if (context_.purpose != Purpose::kPlan) {
      data_sets("data.eval", config_.data.eval);
    }
    return std::move(problems_);
  }

 private:
  void teacher() {
    if (!config_.teacher.path.empty()) {
      model("teacher", config_.teacher);
    }
    if (config_.teacher.reads_cache() && context_.purpose != Purpose::kCapture) {
      teacher_cache();
    }
  }

  void teachers() {
    const auto origin = context_.origins.find("teachers");
    for (size_t i = 0; i < config_.teachers.size(); ++i) {
      const Config own = config_of_teacher(config_, i);
      CheckContext context = context_;
      context.file = origin != context_.origins.end() ? origin->second.file : context_.file;
      context.origins = origins_of_teacher(config_.teachers[i], context.file);
      Paths paths(own, context);
      paths.teacher();
      for (Problem& problem : paths.problems_) {
        problem.key = absl::StrCat("teachers[", i, "] (", config_.teachers[i].name, ") ", problem.key);
        problems_.push_back(std::move(problem));
      }
    }
  }

  void fail(
      const std::string& field, const std::string& key, std::string expected, std::string found,
      std::string hint = "") {
    Problem problem;
    problem.key = key;
    problem.expected = std::move(expected);
    problem.found = std::move(found);
    problem.hint = std::move(hint);
    add_problem(context_, {field}, std::move(problem), &problems_);
  }

  // False, with a problem, when there is nothing at the path.
  bool check_exists(
      const std::string& field, const std::string& key, const std::string& expected, const std::string& path,
      std::string hint = "") {
    if (is_there(path)) {
      return true;
    }
    std::error_code ignored;
    hint = hint.empty() ? base::not_expanded(path) : hint;
    if (hint.empty() && fs::path(path).is_relative()) {
      hint = absl::StrCat("the path is relative to the working directory, ", fs::current_path(ignored).string());
    }
    fail(field, key, expected, absl::StrCat("nothing at ", path), hint);
    return false;
  }

  void model(const std::string& section, const ModelSection& model) {
    const std::string key = section + ".path";
    if (!model.path.empty() &&
        check_exists(key, key, "a Hugging Face folder", model.path, download_hint(key, model.path))) {
      const fs::path folder = model.path;
      if (!is_folder(folder)) {
        fail(key, key, "a Hugging Face folder", absl::StrCat("the file ", model.path));
      } else if (!is_there(folder / "config.json")) {
        const bool is_adapter = is_there(folder / hf::kPeftConfig);
        fail(
            key, key, "a Hugging Face folder with config.json", absl::StrCat("none in ", model.path),
            is_adapter ? absl::StrCat("it is an adapter: set ", section, ".adapter, and ", key, " to its base")
                : is_there(folder / "model" / "config.json")
                ? absl::StrCat("it is a run folder, whose model is ", (folder / "model").string())
                : "");
      } else if (
          model.init == ModelInit::kPretrained && context_.purpose != Purpose::kPlan &&
          !is_there(folder / "model.safetensors") && !is_there(folder / "model.safetensors.index.json")) {
        fail(
            key, key, "model.safetensors or model.safetensors.index.json", absl::StrCat("neither in ", model.path),
            has_file_with_extension(folder, ".bin")
                ? "save the model again with transformers, which writes safetensors"
                : absl::StrCat("with ", section, ".init: random no weights are needed"));
      }
    }
    if (!model.adapter.empty()) {
      adapter(section + ".adapter", model.adapter);
    }
    if (!model.tokenizer.empty()) {
      tokenizer(section + ".tokenizer", model.tokenizer);
    }
  }

  void adapter(const std::string& key, const std::string& path) {
    if (check_exists(key, key, "the folder of an adapter", path) && !is_there(fs::path(path) / hf::kPeftConfig)) {
      fail(key, key, absl::StrCat("the folder of an adapter, with ", hf::kPeftConfig), absl::StrCat("none in ", path));
    }
  }

  void teacher_cache() {
    const std::string& path = config_.teacher.cache;
    if (!path.empty() && check_exists("teacher.cache", "teacher.cache", "the folder of a teacher's cache", path) &&
        !is_there(fs::path(path) / "manifest.json")) {
      fail(
          "teacher.cache", "teacher.cache", "the folder of a teacher's cache, with manifest.json",
          absl::StrCat("none in ", path), "distill capture writes it");
    }
  }

  void tokenizer(const std::string& key, const std::string& path) {
    if (check_exists(key, key, "a folder with tokenizer.json, or the file itself", path) && is_folder(path) &&
        !is_there(fs::path(path) / "tokenizer.json")) {
      fail(key, key, "a folder with tokenizer.json", absl::StrCat("none in ", path));
    }
  }

  void data_sets(const std::string& key, const std::vector<DataSet>& sets) {
    for (size_t i = 0; i < sets.size(); ++i) {
      const std::string item = sets.size() == 1 ? key : absl::StrCat(key, "[", i, "]");
      const std::string& path = sets[i].path;
      if (!check_exists(key, item, "a token shard or a folder of them", path)) {
        continue;
      }
      const std::string& tokenizer =
          config_.student.tokenizer.empty() ? config_.student.path : config_.student.tokenizer;
      std::string hint = tokenize_hint(path, tokenizer);
      if (!is_folder(path) && !hint.empty()) {
        fail(key, item, "a token shard or a folder of them", absl::StrCat("the text file ", path), std::move(hint));
      } else if (is_folder(path) && !has_file_with_extension(path, data::kShardExtension)) {
        fail(
            key, item, "a folder of token shards", absl::StrCat("no *", data::kShardExtension, " in ", path),
            hint.empty() ? "scripts/tokenize.py writes token shards" : std::move(hint));
      }
    }
  }

  void run_folder() {
    if (!config_.run.dir.empty() && is_there(config_.run.dir) && !is_folder(config_.run.dir)) {
      fail("run.dir", "run.dir", "a folder, or nothing yet", absl::StrCat("the file ", config_.run.dir));
    }
  }

  const Config& config_;
  const CheckContext& context_;
  std::vector<Problem> problems_;
};

} // namespace

std::vector<Problem> check_paths(const Config& config, const CheckContext& context) {
  return Paths(config, context).run();
}

} // namespace distill::config

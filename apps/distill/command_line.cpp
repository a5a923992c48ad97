#include "apps/distill/command_line.h"

#include <ATen/Version.h>
#include <CLI/CLI.hpp>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <torch/headeronly/version.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "apps/distill/unexpected.h"
#include "trainer/launch/exit_code.h"

namespace distill::cli {

namespace {

constexpr char kFooter[] = R"(
Examples:
  distill --config configs/quickstart.yaml
  distill --config llama8b.yaml --set optimizer.lr=2e-5 --set "data.train=[a.dtok, {path: b, weight: 2}]"
  distill --config llama8b.yaml --resume --set train.epochs=2 train.steps=null
  distill eval --config llama8b.yaml --student runs/llama8b/model
  distill eval --student runs/llama8b/model --data data/eval --json
  distill inspect runs/llama8b
  distill inspect data/train --tokenizer models/llama8b --documents 5
  distill verify runs/llama8b
  distill report runs/llama8b runs/llama8b-lr2 --output compared.html
  distill export --checkpoint runs/llama8b --out models/llama8b-distilled --dtype bfloat16
  distill plan --config llama8b.yaml --ranks 64
  distill quantize --teacher models/llama8b --data data/eval --limit 0.01
  distill profile-memory --config llama8b.yaml --sweep loss.memory_cap_mb=512,1024,4096

Exit codes: 0 success; 1 failure while running; 2 bad command line, configuration or input file;
3 stopped by SIGINT, SIGTERM, SIGUSR1 or SIGHUP with the state saved (continue with --resume);
4 the run does not fit into the memory: found by `distill plan`, --dry-run or a start, which then has not begun.)";

std::string version_text() {
#ifdef DISTILL_WITH_CUDA
  const char* cuda = "with CUDA";
#else
  const char* cuda = "without CUDA";
#endif
  return std::string("distill " DISTILL_VERSION " (libtorch " TORCH_VERSION ", ") + cuda + ")";
}

// CLI11's own validators of these kinds print the limits of a double with all 309 digits.
CLI::Validator at_least(int64_t least) {
  const std::string expected = absl::StrCat("an integer of at least ", least);
  return CLI::Validator(
      [=](const std::string& text) {
        int64_t value = 0;
        return absl::SimpleAtoi(text, &value) && value >= least ? std::string()
                                                                : absl::StrCat("expected ", expected, ", found ", text);
      },
      "");
}

CLI::Validator above_zero() {
  return CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        return absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0
            ? std::string()
            : absl::StrCat("expected a number above 0, found ", text);
      },
      "");
}

void add_config_options(CLI::App& app, std::string& config, std::vector<std::string>& overrides) {
  app.add_option("--config", config, "Configuration file in YAML; --help-config lists its keys")->type_name("FILE");
  app.add_option("--set", overrides, "Override keys of the configuration; may be given several times")
      ->type_name("KEY=VALUE")
      ->take_all();
}

void add_train_options(CLI::App& app, TrainCommand& train) {
  add_config_options(app, train.config, train.overrides);
  CLI::Option* resume =
      app.add_flag("--resume", train.resume, "Continue the run in run.dir from its newest complete checkpoint");
  app.add_option(
         "--resume-from", train.resume_from,
         "Continue from this checkpoint. If it belongs to run.dir: like --resume, and later checkpoints are set aside. If "
         "it belongs to another run: run.dir must be empty or new")
      ->type_name("DIR")
      ->excludes(resume);
  app.add_flag(
         "--overwrite", train.overwrite,
         "Remove what an earlier run has written to run.dir, and start from the beginning")
      ->excludes(resume);
  app.add_flag(
      "--dry-run", train.dry_run, "Check configuration, models, tokenizers and data, print the memory plan, and exit");
}

void add_eval_options(CLI::App& app, EvalCommand& eval) {
  add_config_options(app, eval.request.config, eval.request.overrides);
  app.add_option("--student", eval.request.student, "Model to evaluate, instead of student.path")->type_name("DIR");
  app.add_option(
         "--teacher", eval.request.teacher,
         "Teacher to compare with, instead of teacher.path. With no teacher at all the loss is the cross-entropy on the "
         "labels")
      ->type_name("DIR");
  app.add_option("--data", eval.request.data, "Token shards or folders of them, instead of data.eval")
      ->type_name("PATH")
      ->take_all();
  app.add_flag("--json", eval.json, "Print one JSON object, named as in metrics.jsonl");
}

void add_inspect_options(CLI::App& app, trainer::InspectRequest& request) {
  app.add_option("PATH", request.path, "File or folder")->required();
  app.add_option(
         "--tokenizer", request.tokenizer,
         "Token shards and caches: show documents as text, with what is trained on marked; a model folder or a "
         "tokenizer.json")
      ->type_name("PATH");
  CLI::Option* documents =
      app.add_option(
             "--documents", request.documents,
             "Token shards and caches: show the first N documents, or documents A to B, and check nothing else; default: "
             "check all, and of shards show 3")
          ->type_name("N|A-B");
  app.add_option("--document", request.document, "Token shards and caches: show this document alone, counted from 0")
      ->type_name("I")
      ->check(at_least(0))
      ->excludes(documents);
  app.add_option("--tokens", request.max_tokens, "Tokens of each document that are shown; 0: all; default: 2000")
      ->type_name("N")
      ->check(at_least(0));
  app.add_option("--html", request.html, "Write the documents to this file as a page, instead of showing them")
      ->type_name("FILE");
}

void add_verify_options(CLI::App& app, VerifyCommand& verify) {
  CLI::Option* path = app.add_option("DIR", verify.path, "Folder");
  CLI::Option* cache = app.add_option("--cache", verify.cache.cache, "A teacher's cache, to compare with the teacher")
                           ->type_name("DIR")
                           ->excludes(path);
  CLI::Option* teacher = app.add_option(
                                "--teacher", verify.cache.teacher,
                                "The teacher: random sequences are computed again, and the KL is printed")
                             ->type_name("DIR")
                             ->needs(cache);
  app.add_option("--samples", verify.cache.samples, "Sequences that are computed again")
      ->type_name("N")
      ->check(at_least(1))
      ->needs(teacher)
      ->capture_default_str();
  app.add_option(
         "--seq-len", verify.cache.seq_len,
         "Cut the documents as a run with this data.seq_len does. Default: as when they were captured")
      ->type_name("N")
      ->check(at_least(1))
      ->needs(teacher);
  app.add_option("--seed", verify.cache.seed, "Seed of the draw")->type_name("N")->needs(teacher);
}

void add_quantize_options(CLI::App& app, QuantizeCommand& quantize) {
  trainer::QuantizeRequest& request = quantize.request;
  add_config_options(app, request.models.config, request.models.overrides);
  app.add_option("--teacher", request.models.teacher, "Teacher, instead of teacher.path; of several, its name")
      ->type_name("DIR");
  app.add_option(
         "--data", request.models.data,
         "Token shards or folders of them, instead of data.eval, or of data.train where there is no data.eval")
      ->type_name("PATH")
      ->take_all();
  app.add_option("--limit", request.max_mean_kl, "Largest mean KL in nats, instead of float8.max_mean_kl")
      ->type_name("KL")
      ->check(above_zero());
  app.add_option("--tokens", request.tokens, "Tokens to measure on, instead of float8.gate_tokens")
      ->type_name("N")
      ->check(at_least(1));
  app.add_flag("--json", quantize.json, "Print one JSON object");
}

void add_plan_options(CLI::App& app, PlanCommand& plan) {
  add_config_options(app, plan.config, plan.overrides);
  app.add_option("--ranks", plan.ranks, "Number of ranks to plan for; default: the ranks that would start here")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  app.add_option("--ranks-per-node", plan.ranks_per_node, "Ranks on one node")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--json", plan.json, "Print one JSON object, in bytes and seconds");
  app.add_flag("--longest", plan.longest, "Find the largest data.seq_len that fits, and plan for it");
  app.add_option(
         "--calibrate", plan.calibrate,
         "Measure the speed of this machine's matrix products, attention, copies and (with several ranks) collectives, and "
         "write them to a file for memory.machine")
      ->type_name("FILE");
}

void add_profile_options(CLI::App& app, ProfileMemoryCommand& profile) {
  add_config_options(app, profile.config, profile.overrides);
  app.add_option("--steps", profile.steps, "Number of steps to run")
      ->type_name("N")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--sweep", profile.sweep, "Run once for each value of one key, and print a table")
      ->type_name("KEY=V1,V2,...");
  app.add_option("--out", profile.out, "Folder for the report, the timeline and the memory_viz snapshot")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_flag("--json", profile.json, "Print the report as JSON");
}

void add_export_options(CLI::App& app, ExportCommand& command) {
  app.add_option("--checkpoint", command.checkpoint, "A checkpoint, or a run folder for its newest complete checkpoint")
      ->type_name("DIR")
      ->required();
  app.add_option("--out", command.out, "Model folder to write; it must be empty or new")->type_name("DIR")->required();
  constexpr auto kDtypes = enum_names(config::StoredDtype{});
  app.add_option_function<std::string>(
         "--dtype", [&](const std::string& name) { command.dtype = *base::enum_named<config::StoredDtype>(name); },
         "Dtype of the stored weights. auto: the dtype that student.path is stored in")
      ->check(CLI::IsMember(std::vector<std::string>(kDtypes.begin(), kDtypes.end())));
  app.add_option(
         "--model", command.model,
         "Folder that config.json and the tokenizer are copied from. Default: student.path of the run")
      ->type_name("DIR");
  app.add_flag(
      "--merge", command.merge,
      "Of a student with adapters: write the whole model with them in its weights, instead of the adapters alone");
}

void add_report_options(CLI::App& app, ReportCommand& report) {
  app.add_option("RUN", report.runs, "Run folders, finished or being written; several are drawn over one another")
      ->required();
  app.add_option(
         "--output", report.output,
         "File to write. Default: report.html, in the run folder where there is one, else in the working directory")
      ->type_name("FILE");
}

// The commands with the values of their options; CLI11 fills in the one that is given.
struct Commands {
  TrainCommand train; // without a command
  TrainCommand named_train;
  CaptureCommand capture;
  EvalCommand eval;
  InspectCommand inspect;
  VerifyCommand verify;
  ExportCommand exported;
  ReplayCommand replay;
  PlanCommand plan;
  ProfileMemoryCommand profile;
  ReportCommand report;
  QuantizeCommand quantize;
  bool help_config = false;
};

void add_commands(CLI::App& app, Commands& commands) {
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag(
      "--help-config", commands.help_config, "Print every key of the configuration with its type, default and meaning");
  app.set_version_flag("--version", version_text(), "Print the versions of distill and libtorch");
  add_train_options(app, commands.train);
  add_train_options(*app.add_subcommand("train", "Train; the same as no command"), commands.named_train);
  CLI::App* capture = app.add_subcommand(
      "capture",
      "Run the teacher over the data once, and store its predictions in teacher.cache (docs/teacher_cache.md)");
  add_config_options(*capture, commands.capture.config, commands.capture.overrides);
  capture
      ->add_option("--teacher", commands.capture.teacher, "Of several teachers, the one whose predictions are stored")
      ->type_name("NAME");
  capture->add_flag(
      "--dry-run", commands.capture.dry_run,
      "Check configuration, teacher, tokenizer and data, print the cache's size and the memory plan, and exit");
  add_eval_options(
      *app.add_subcommand(
          "eval", "Evaluate a student on held-out token shards, against its teacher where there is one"),
      commands.eval);
  add_inspect_options(
      *app.add_subcommand(
          "inspect",
          "Describe and check a token shard, a model folder, a run folder, a teacher's cache or a checkpoint"),
      commands.inspect.request);
  add_verify_options(
      *app.add_subcommand(
          "verify", "Compare all checksums of a checkpoint, a model folder, a teacher's cache or a whole run folder"),
      commands.verify);
  add_export_options(
      *app.add_subcommand("export", "Write the model of a checkpoint as a Hugging Face folder; needs no GPU"),
      commands.exported);
  CLI::App* replay = app.add_subcommand(
      "replay", "Repeat one step of a run, from the checkpoint before it, and print the loss of each of its samples");
  add_config_options(*replay, commands.replay.config, commands.replay.overrides);
  replay->add_option("--step", commands.replay.step, "The step, numbered as in metrics.jsonl and events.jsonl")
      ->required();
  add_plan_options(
      *app.add_subcommand(
          "plan", "Predict memory by category, and time, from shapes alone: needs no GPU, no weights and no data"),
      commands.plan);
  add_profile_options(
      *app.add_subcommand(
          "profile-memory", "Run a few steps, and compare the peak memory of each phase and category with the plan"),
      commands.profile);
  add_report_options(
      *app.add_subcommand("report", "Write one HTML page with the curves, evaluations, memory and events of runs"),
      commands.report);
  add_quantize_options(
      *app.add_subcommand(
          "quantize",
          "Measure what float8 changes in a teacher's predictions, and find the products that must stay as they are"),
      commands.quantize);
}

// Throws CLI::RequiredError unless the command was given a configuration file. `instead`: what may be given instead.
void require_config(const std::string& command, const std::string& file, const std::string& instead = "") {
  if (file.empty()) {
    throw CLI::RequiredError((command.empty() ? "--config" : command + ": --config") + instead);
  }
}

// The command that was parsed. Throws CLI::ParseError for options that do not belong together.
Command parsed_command(const CLI::App& app, const Commands& commands) {
  if (commands.help_config) {
    return HelpConfigCommand{};
  }
  const std::string name = app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name();
  for (const char* option : {"--config", "--set", "--resume", "--resume-from", "--overwrite", "--dry-run"}) {
    if (!name.empty() && app.count(option) > 0) {
      throw CLI::ValidationError("options must be given after the command: distill " + name + " ...");
    }
  }
  if (name == "capture") {
    require_config(name, commands.capture.config);
    return commands.capture;
  }
  if (name == "eval") {
    if (commands.eval.request.student.empty() || commands.eval.request.data.empty()) {
      require_config(name, commands.eval.request.config, ", or --student and --data,");
    }
    return commands.eval;
  }
  if (name == "inspect") {
    return commands.inspect;
  }
  if (name == "verify") {
    if (commands.verify.path.empty() && commands.verify.cache.cache.empty()) {
      throw CLI::RequiredError("verify: DIR, or --cache,");
    }
    return commands.verify;
  }
  if (name == "export") {
    return commands.exported;
  }
  if (name == "replay") {
    require_config(name, commands.replay.config);
    return commands.replay;
  }
  if (name == "plan") {
    if (commands.plan.calibrate.empty()) {
      require_config(name, commands.plan.config);
    }
    return commands.plan;
  }
  if (name == "profile-memory") {
    require_config(name, commands.profile.config);
    return commands.profile;
  }
  if (name == "report") {
    return commands.report;
  }
  if (name == "quantize") {
    if (commands.quantize.request.models.teacher.empty() || commands.quantize.request.models.data.empty()) {
      require_config(name, commands.quantize.request.models.config, ", or --teacher and --data,");
    }
    return commands.quantize;
  }
  const TrainCommand& train = name == "train" ? commands.named_train : commands.train;
  require_config(name, train.config);
  return train;
}

// The call that prints the help of what was asked for.
std::string help_call(const CLI::App& app) {
  return app.get_subcommands().empty() ? "distill --help"
                                       : absl::StrCat("distill ", app.get_subcommands()[0]->get_name(), " --help");
}

} // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app{"Distils a student language model from a frozen teacher. Without a command: train.", "distill"};
  app.footer(kFooter);
  Commands commands;
  add_commands(app, commands);
  try {
    app.parse(argc, argv);
    return {parsed_command(app, commands)};
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) { // --help, --version
      std::ostringstream text; // printed at once, without the flushes of std::endl
      app.exit(error, text, std::cerr);
      std::fputs(text.str().c_str(), stdout);
      return {std::nullopt, launch::kSuccess};
    }
    // An option that is not known is the reason for one that is missing.
    const std::string unexpected = explain_unexpected(app);
    std::cerr << "distill: error: " << (unexpected.empty() ? error.what() : unexpected.c_str()) << "\nRun `"
              << help_call(app) << "` for more information.\n";
    return {std::nullopt, launch::kBadInput};
  }
}

} // namespace distill::cli

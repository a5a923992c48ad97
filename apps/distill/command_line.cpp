#include "apps/distill/command_line.h"

#include <ATen/Version.h>
#include <CLI/CLI.hpp>
#include <torch/headeronly/version.h>

#include <iostream>

#include "apps/distill/exit_code.h"

namespace distill::cli {

namespace {

constexpr char kFooter[] = R"(
Examples:
  distill --config configs/quickstart.yaml
  distill --config llama8b.yaml --set optimizer.lr=2e-5 --set "data.train=[a.dtok, {path: b, weight: 2}]"
  distill eval --config llama8b.yaml --set student.path=runs/llama8b/model
  distill inspect runs/llama8b
  distill verify runs/llama8b
  distill export --checkpoint runs/llama8b --out models/llama8b-distilled --dtype bfloat16
  distill plan --config llama8b.yaml --ranks 64
  distill profile-memory --config llama8b.yaml --sweep loss.memory_cap_mb=512,1024,4096

Exit codes: 0 success; 1 failure while running; 2 bad command line, configuration or input file;
3 stopped by SIGINT, SIGTERM or SIGUSR1 with the state saved (continue with --resume).)";

std::string version_text() {
#ifdef DISTILL_WITH_CUDA
  const char* cuda = "with CUDA";
#else
  const char* cuda = "without CUDA";
#endif
  return std::string("distill " DISTILL_VERSION " (libtorch " TORCH_VERSION ", ") + cuda + ")";
}

void add_config_options(CLI::App& app, std::string& config, std::vector<std::string>& overrides) {
  app.add_option("--config", config, "Configuration file, YAML; --help-config lists its keys")->type_name("FILE");
  app.add_option("--set", overrides, "Override one key of the configuration; may be given many times")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
}

void add_train_options(CLI::App& app, TrainCommand& train) {
  add_config_options(app, train.config, train.overrides);
  CLI::Option* resume =
      app.add_flag("--resume", train.resume, "Continue the run in run.dir from its newest complete checkpoint");
  app.add_option(
         "--resume-from", train.resume_from,
         "Continue from this checkpoint. One of run.dir: as --resume, what lies beyond it is set aside. One of another "
         "run: run.dir must be empty or new")
      ->type_name("DIR")
      ->excludes(resume);
  app.add_flag("--overwrite", train.overwrite, "Remove what an earlier run left in run.dir and start afresh")
      ->excludes(resume);
  app.add_flag(
      "--dry-run", train.dry_run,
      "Check configuration, models, tokenizers and data, print the memory plan, then leave");
}

void add_plan_options(CLI::App& app, PlanCommand& plan) {
  add_config_options(app, plan.config, plan.overrides);
  app.add_option("--ranks", plan.ranks, "Plan for so many ranks; default: those that would start here")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  app.add_option("--ranks-per-node", plan.ranks_per_node, "Ranks that share a node's links")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--json", plan.json, "Print one JSON object; bytes and seconds");
  app.add_flag("--longest", plan.longest, "Find the largest data.seq_len that fits, and plan for it");
  app.add_option(
         "--calibrate", plan.calibrate,
         "Measure this machine's products, attention, copies and, with several ranks, collectives, and write them to a file "
         "for memory.machine")
      ->type_name("FILE");
}

void add_profile_options(CLI::App& app, ProfileMemoryCommand& profile) {
  add_config_options(app, profile.config, profile.overrides);
  app.add_option("--steps", profile.steps, "Steps to run")
      ->type_name("N")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--sweep", profile.sweep, "Run once for each value of one key and print a table")
      ->type_name("KEY=V1,V2,...");
  app.add_option("--out", profile.out, "Folder for the report, the timeline and the memory_viz snapshot")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_flag("--json", profile.json, "Print the report as JSON");
}

void add_export_options(CLI::App& app, ExportCommand& command) {
  app.add_option("--checkpoint", command.checkpoint, "A checkpoint, or a run folder: its newest complete one")
      ->type_name("DIR")
      ->required();
  app.add_option("--out", command.out, "Model folder to write; must be empty or new")->type_name("DIR")->required();
  app.add_option("--dtype", command.dtype, "Stored dtype; auto: the one that the student's folder is stored in")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}));
  app.add_option(
         "--model", command.model, "Where config.json and the tokenizer come from. Default: the run's student.path")
      ->type_name("DIR");
}

void require(const CLI::App& app, const std::string& value, const char* option) {
  if (value.empty()) {
    throw CLI::RequiredError(app.get_name().empty() ? option : app.get_name() + ": " + option);
  }
}

} // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app{"Distils a student language model from a frozen teacher. Without a command: train.", "distill"};
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  TrainCommand train;
  TrainCommand named_train;
  EvalCommand eval;
  InspectCommand inspect;
  bool help_config = false;
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag("--help-config", help_config, "Print every key of the configuration with type, default and meaning");
  app.set_version_flag("--version", version_text(), "Print the versions of distill and libtorch");
  add_train_options(app, train);
  CLI::App* train_app = app.add_subcommand("train", "Train; the same as no command");
  add_train_options(*train_app, named_train);
  CLI::App* eval_app = app.add_subcommand("eval", "Evaluate student.path against teacher.path on data.eval");
  add_config_options(*eval_app, eval.config, eval.overrides);
  eval_app->add_flag("--json", eval.json, "Print one JSON object, named as in metrics.jsonl");
  CLI::App* inspect_app =
      app.add_subcommand("inspect", "Describe and check a token shard, a model folder, a run folder or a checkpoint");
  inspect_app->add_option("PATH", inspect.path, "File or folder")->required();
  VerifyCommand verify;
  CLI::App* verify_app =
      app.add_subcommand("verify", "Compare every checksum of a checkpoint, a model folder or a whole run folder");
  verify_app->add_option("DIR", verify.path, "Folder")->required();
  ExportCommand exported;
  CLI::App* export_app =
      app.add_subcommand("export", "Write a checkpoint's model as a Hugging Face folder; needs no GPU");
  add_export_options(*export_app, exported);
  ReplayCommand replay;
  CLI::App* replay_app = app.add_subcommand(
      "replay", "Do one step of a run again, from the checkpoint before it, and say what each of its samples loses");
  add_config_options(*replay_app, replay.config, replay.overrides);
  replay_app->add_option("--step", replay.step, "The step, as in metrics.jsonl and events.jsonl")->required();
  PlanCommand plan;
  CLI::App* plan_app = app.add_subcommand(
      "plan", "Predict memory by category, time and speed, from shapes alone: no GPU, no weights, no data");
  add_plan_options(*plan_app, plan);
  ProfileMemoryCommand profile;
  CLI::App* profile_app = app.add_subcommand(
      "profile-memory", "Run a few steps and compare each phase's and category's peak with the plan");
  add_profile_options(*profile_app, profile);

  try {
    app.parse(argc, argv);
    const bool has_command = !app.get_subcommands().empty();
    if (help_config) {
      return {HelpConfigCommand{}};
    }
    if (has_command &&
        (app.count("--config") + app.count("--set") + app.count("--resume") + app.count("--resume-from") +
         app.count("--overwrite") + app.count("--dry-run")) > 0) {
      throw CLI::ValidationError(
          "options stand after the command: distill " + app.get_subcommands()[0]->get_name() + " ...");
    }
    if (eval_app->parsed()) {
      require(*eval_app, eval.config, "--config");
      return {eval};
    }
    if (inspect_app->parsed()) {
      return {inspect};
    }
    if (verify_app->parsed()) {
      return {verify};
    }
    if (export_app->parsed()) {
      return {exported};
    }
    if (replay_app->parsed()) {
      require(*replay_app, replay.config, "--config");
      return {replay};
    }
    if (plan_app->parsed()) {
      if (plan.calibrate.empty()) {
        require(*plan_app, plan.config, "--config");
      }
      return {plan};
    }
    if (profile_app->parsed()) {
      require(*profile_app, profile.config, "--config");
      return {profile};
    }
    const TrainCommand& chosen = train_app->parsed() ? named_train : train;
    require(train_app->parsed() ? *train_app : app, chosen.config, "--config");
    return {chosen};
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) { // --help, --version
      app.exit(error, std::cout, std::cerr);
      return {std::nullopt, kSuccess};
    }
    std::cerr << "distill: error: " << error.what() << "\nRun `distill --help` for more information.\n";
    return {std::nullopt, kBadInput};
  }
}

} // namespace distill::cli

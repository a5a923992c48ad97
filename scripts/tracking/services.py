"""Weights & Biases and MLflow behind the same few functions."""

import json
import os
import secrets

SAMPLE_COLUMNS = ("step", "index", "prompt", "target", "student", "teacher")


class MissingPackage(Exception):
    """The service's package is not installed; the message says how to install it."""


def service_of(name, files, state, project, run_name):
    return {"wandb": WandbService, "mlflow": MlflowService}[name](files, state, project, run_name)


def flattened(config):
    """{"optimizer.lr": value} of the sections."""
    return {
        f"{section}.{key}" if key else section: value
        for section, keys in config.items()
        for key, value in (keys.items() if isinstance(keys, dict) else [("", keys)])
    }


class WandbService:
    """Each line of metrics.jsonl is a row of the run's history. Its step is the metric train/step, eval/step or
    events/step, which the charts take as x axis: the service's own counter goes forwards only, so that an evaluation
    that is sent later than a step would be dropped."""

    def __init__(self, files, state, project, run_name):
        try:
            import wandb
        except ImportError:
            raise MissingPackage("the package wandb is missing: pip install wandb") from None
        self.wandb = wandb
        state.run_id = state.run_id or secrets.token_hex(4)
        self.run = wandb.init(
            project=project,
            name=run_name,
            id=state.run_id,
            resume=None if wandb.setup().settings.mode == "offline" else "allow",
            config=files.config(),
            settings=wandb.Settings(console="off"),
        )
        for prefix in ("train", "eval", "rounds", "events", "generated"):
            self.run.define_metric(f"{prefix}/step")
            self.run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
        self.run.define_metric("phases/*", step_metric="train/step")
        self.exit_code = 0

    def last_sent(self):
        summary = self.run.summary  # empty offline
        return summary.get("train/step") or 0, -1 if summary.get("eval/step") is None else summary["eval/step"]

    def metrics(self, kind, step, values, milliseconds):
        self.run.log({f"{kind}/step": step, **values})

    def samples(self, step, samples):
        table = self.wandb.Table(columns=list(SAMPLE_COLUMNS))
        for sample in samples:
            table.add_data(*(sample.get(column) for column in SAMPLE_COLUMNS))
        self.run.log({"generated/step": step, "generated/samples": table})

    def file(self, path):
        kind = path.name.split(".")[0]
        artifact = self.wandb.Artifact(f"{kind}-{self.run.id}", type=kind)
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def finish(self, state, outcome):
        self.run.summary["state"] = state
        if outcome:
            self.run.summary["outcome"] = outcome
        self.exit_code = 1 if state == "failed" else 0

    def flush(self):
        pass  # the service's own process has the rows

    def close(self, failed=False):
        self.run.finish(exit_code=1 if failed else self.exit_code)

    def where(self):
        return self.run.url or f"offline in {os.path.dirname(self.run.dir)}; `wandb sync` sends it"


class MlflowService:
    """Metrics have their step and the time at which the step ended; the configuration's keys are parameters."""

    MOST_METRICS = 1000  # that one request may have
    LONGEST_VALUE = 6000  # of a parameter
    LONGEST_TAG = 5000

    def __init__(self, files, state, project, run_name):
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise MissingPackage("the package mlflow is missing: pip install mlflow") from None
        self.Metric, self.Param, self.MlflowException = Metric, Param, MlflowException
        self.client = MlflowClient()
        self.run_id = state.run_id = self.open_run(state.run_id, project, run_name)
        self.pending = []
        self.send_parameters(flattened(files.config()))

    def open_run(self, run_id, project, run_name):
        if run_id:
            try:
                self.client.update_run(run_id, status="RUNNING")
                return run_id
            except self.MlflowException as error:
                raise SystemExit(
                    f"track.py: the run {run_id} of track-mlflow.json is not there ({error.message}); is "
                    "MLFLOW_TRACKING_URI another one? --new sends everything to a new run"
                ) from None
        experiment = self.client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(project)
        return self.client.create_run(experiment_id, run_name=run_name).info.run_id

    def send_parameters(self, config):
        """Parameters cannot be changed; where a resumed run has another value, a tag has it."""
        known = self.client.get_run(self.run_id).data.params
        for key, value in config.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if key not in known:
                self.client.log_param(self.run_id, key, text[: self.LONGEST_VALUE])
            elif known[key] != text[: self.LONGEST_VALUE]:
                self.client.set_tag(self.run_id, f"changed.{key}", text[: self.LONGEST_TAG])

    def last_sent(self):
        def last(name, none):
            return max((m.step for m in self.client.get_metric_history(self.run_id, name)), default=none)

        return last("train/lr", 0), last("eval/valid_tokens", -1)

    def metrics(self, kind, step, values, milliseconds):
        if len(self.pending) + len(values) > self.MOST_METRICS:
            self.flush()
        self.pending += [self.Metric(name, value, milliseconds, step) for name, value in values.items()]

    def samples(self, step, samples):
        parts = [f"# Samples after step {step}\n"]
        for sample in samples:
            parts.append(f"\n## Prompt {sample.get('index')}\n\n{sample.get('prompt')}\n")
            for name in ("student", "teacher", "target"):
                if sample.get(name) is not None:
                    parts.append(f"\n### {name}\n\n{sample[name]}\n")
        self.client.log_text(self.run_id, "".join(parts), f"samples/step-{step:08}.md")

    def file(self, path):
        self.client.log_artifact(self.run_id, str(path))

    def finish(self, state, outcome):
        self.flush()
        if outcome:
            self.client.set_tag(self.run_id, "outcome", outcome[: self.LONGEST_TAG])
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}.get(state, "FINISHED")
        self.client.set_terminated(self.run_id, status)

    def flush(self):
        if self.pending:
            self.client.log_batch(self.run_id, metrics=self.pending)
            self.pending = []

    def close(self, failed=False):
        self.flush()

    def where(self):
        return f"MLflow run {self.run_id}"

"""What of a run folder goes to a service, in which order, and what is not sent twice."""

import datetime
import math
import sys


def is_number(value):
    return isinstance(value, bool | int | float) and math.isfinite(value)


def flat_metrics(record, prefix):
    """{name: number} of a step or an evaluation; values that are not known are left out. The names of numbers that are
    not exact say so, as the tags of TensorBoard do (trainer/metrics/tensorboard.h)."""
    values = {}
    ending = {name: "_lower_bound" for name in record.get("lower_bounds", [])}
    ending |= {name: "_estimate" for name in record.get("estimates", [])}
    for name, value in record.items():
        if name == "phase_seconds" and isinstance(value, dict):
            values.update({f"phases/{phase}": v for phase, v in value.items() if is_number(v)})
        elif name not in ("step", "time_ms") and is_number(value):
            values[f"{prefix}/{name}{ending.get(name, '')}"] = float(value) if isinstance(value, bool) else value
    return values


class Sender:
    BATCH = 200  # lines that are sent before the state is written

    def __init__(self, files, state, service):
        self.files = files
        self.state = state
        self.service = service
        self.seconds = 0.0  # of the steps that were read
        self.read_to = 0
        starts = [record.get("start") for record in files.sessions() if "start" in record]
        self.start = self.time_of(starts[0]) if starts else datetime.datetime.now(datetime.UTC)
        self.warned = False
        self.trust_the_service()

    @staticmethod
    def time_of(text):
        try:
            return datetime.datetime.fromisoformat(text)
        except (TypeError, ValueError):
            return datetime.datetime.now(datetime.UTC)

    def trust_the_service(self):
        """A process that was killed may have sent more than its state has; the service knows, where it can be asked."""
        step, evaluation = self.service.last_sent()
        self.state.last_step = max(self.state.last_step, step)
        self.state.last_evaluation = max(self.state.last_evaluation, evaluation)
        self.state.write()  # the run's id, before anything is sent to it

    def milliseconds(self, record=None):
        """When the record was written. Where it does not say so: when the step that was read last would have ended
        without evaluations and checkpoints."""
        written = (record or {}).get("time_ms")
        return int(written) if is_number(written) else int(1000 * (self.start.timestamp() + self.seconds))

    def send_new(self):
        unsaved = 0
        for record in self.files.metrics.new_records():
            unsaved += self.send_record(record)
            if unsaved >= self.BATCH:
                self.save()
                unsaved = 0
        self.send_events()
        self.send_samples()
        self.save()

    def save(self):
        self.service.flush()
        self.state.write()

    def send_record(self, record):
        if "eval" in record:
            return self.send_evaluation(record)
        return self.send_round(record) if "round" in record else self.send_step(record)

    def send_step(self, record):
        step = record.get("step", 0)
        if step <= self.read_to:  # the file was replaced, and is read again
            self.seconds = 0.0
        self.read_to = step
        seconds = record.get("seconds")
        self.seconds += seconds if is_number(seconds) else 0
        if step <= self.state.last_step:
            self.compare(record)
            return 0
        self.service.metrics("train", step, flat_metrics(record, "train"), self.milliseconds(record))
        self.state.last_step, self.state.last_loss = step, record.get("loss")
        return 1

    def compare(self, record):
        """Steps that a resumed run repeats have the values that were sent, unless something was changed."""
        known = self.state.last_loss
        if (
            record["step"] == self.state.last_step
            and known is not None
            and record.get("loss") != known
            and not self.warned
        ):
            self.warned = True
            print(
                f"track.py: warning: step {record['step']} has loss {record.get('loss')}, and {known} was sent: the "
                "run went on from an earlier checkpoint and another way. The service keeps what it has, and gets the "
                "later steps; --new sends everything to a new run",
                file=sys.stderr,
            )

    def send_evaluation(self, record):
        step = record.get("step", 0)
        if step <= self.state.last_evaluation or not isinstance(record["eval"], dict):
            return 0
        self.service.metrics("eval", step, flat_metrics(record["eval"], "eval"), self.milliseconds(record))
        self.state.last_evaluation = step
        return 1

    def send_round(self, record):
        step, values = record.get("step", 0), record["round"]
        if step <= self.state.last_round or not isinstance(values, dict):
            return 0
        parts = {name: part for name, part in values.items() if isinstance(part, dict)}
        numbers = flat_metrics(values, "rounds")
        for name, part in parts.items():
            numbers |= flat_metrics(part, f"rounds/{name}")
        self.service.metrics("rounds", step, numbers, self.milliseconds(record))
        self.state.last_round = step
        return 1

    def send_events(self):
        for record in self.files.events.new_records():
            mark = [record.get("step", 0), str(record.get("event", "event"))]
            if mark not in self.state.events:
                self.service.metrics("events", mark[0], {f"events/{mark[1]}": 1}, self.milliseconds())
                self.state.events.append(mark)

    def send_samples(self):
        by_step = {}
        for record in self.files.samples.new_records():
            by_step.setdefault(record.get("step", 0), []).append(record)
        for step, samples in sorted(by_step.items()):
            if step > self.state.last_sample:
                self.service.samples(step, samples)
                self.state.last_sample = step

    def send_end(self):
        end = self.files.ended() or {}
        self.service.finish(end.get("state", "finished"), end.get("outcome"))
        for name in ("report.html", "events.jsonl", "config.yaml"):
            if (self.files.folder / name).is_file():
                self.service.file(self.files.folder / name)
        self.save()

"""What has been sent already, in a file of the run folder."""

import json
import os


class State:
    """Members that are kept: the service's run, and the last step, evaluation, round, event and sample that it has."""

    def __init__(self, path, fresh=False):
        self.path = path
        self.run_id = None
        self.last_step = 0
        self.last_loss = None  # of that step, to notice a run that went another way
        self.last_evaluation = -1
        self.last_round = -1  # steps done before it
        self.events = []  # [step, kind] of each one that was sent
        self.last_sample = -1  # step
        if not fresh:
            self.read()

    def read(self):
        try:
            read = json.loads(self.path.read_text())
        except (FileNotFoundError, ValueError):
            return
        for name in self.members():
            setattr(self, name, read.get(name, getattr(self, name)))

    def members(self):
        return [name for name in vars(self) if name != "path"]

    def write(self):
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps({name: getattr(self, name) for name in self.members()}) + "\n")
        os.replace(partial, self.path)

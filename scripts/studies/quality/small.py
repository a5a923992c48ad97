"""A small study beside the main one: a few trainings with the table's settings, several at a time on one device."""

from pathlib import Path

from shared import runs
from shared.command_line import fail

from . import training
from .folders import Folders
from .study import TABLE, Study


def add_arguments(parser):
    parser.add_argument("--profile", default="gpu", help="of study.yaml (default: gpu)")
    parser.add_argument("--study", type=Path, default=TABLE, help="another study.yaml")
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of the inputs")
    parser.add_argument("--scratch", type=Path, help="for run folders (default: in --work)")
    parser.add_argument("--results", type=Path, required=True, help="folder for one JSON file of each run")
    runs.add_arguments(parser)


class SmallStudy(runs.Runner):
    def __init__(self, args):
        try:
            self.study = Study(args.profile, table=args.study)
        except (ValueError, OSError) as error:
            fail(error)
        self.folders = Folders(args.work, args.scratch or args.work, args.results)
        super().__init__(args, self.study, self.folders.runs, self.folders.results)

    def trained(self, name, steps, keys, teachers=(), keep=False):
        """Trains with the table's settings and `keys`, {"section.key": value}; returns what the result has of it.

        `teachers`: the list of several. `keep`: leaves the model in the run folder.
        """
        settings = runs.settings(self.study, steps, self.folders.run(name))
        config = runs.merged(self.study.config, settings | keys)
        if teachers:
            config["teachers"] = teachers
        records, evaluations, seconds = self.train(name, config)
        result = {"steps": len(records), "seconds": training.short(seconds)}
        result["evaluations"] = [{"step": line["step"], **training.measures(line["eval"])} for line in evaluations]
        if not keep:
            training.forget(self.folders, name)
        return result

    def measured(self, student, teacher, data):
        """The metrics of a model folder on token shards, against a teacher's folder."""
        keys = [f"eval.batches={self.study.eval_batches}"]
        return training.measures(self.evaluate(student, data, teacher, keys))

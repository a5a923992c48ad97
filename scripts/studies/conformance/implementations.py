"""The losses of other libraries and ours behind one interface.

An implementation is a function (problem, micro-batch, weight_VH, hidden_BSH) -> scalar loss, called as its library's
trainer calls it, or None where the library has no such loss. A library's module that needs nothing but torch is loaded
from its file, so that the library can be installed without its dependencies.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch

from .cases import IGNORED, logits_of


@dataclass
class Implementation:
    name: str
    package: str  # whose version is printed
    function: str  # what is called, for the page
    make: Callable  # () -> loss(problem, micro-batch, weight_VH, hidden_BSH)
    divides_by: str  # how the trainer that calls it divides, for the page
    mean_of_micro_batches: bool = False  # its trainer takes the mean of the micro-batches' losses, not their sum

    def version(self):
        """The installed version, or None."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


def module_of(package, path):
    """The module in an installed package's file, without the package's own imports."""
    file = metadata.distribution(package).locate_file(path)
    spec = importlib.util.spec_from_file_location(path.replace("/", ".").removesuffix(".py"), file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logits_of_both(problem, index, weight, hidden):
    """Logits [B, S, V] of student and teacher, with the case's softcap, as a model would return them."""
    batch, cap = problem.batches[index], problem.case.softcap
    return logits_of(hidden, weight, cap), logits_of(batch.teacher_hidden_BSG, problem.teacher_weight_VG, cap)


def weight_of_teacher(case):
    """The libraries' beta: 0 is the forward KL, 1 the reverse."""
    return {"jsd": case.beta, "forward_kl": 0.0, "reverse_kl": 1.0}[case.divergence]


def distill():
    def loss(problem, index, weight, hidden):
        case, batch = problem.case, problem.batches[index]
        rows = torch.ops.distill.linear_jsd(
            hidden.flatten(0, 1),
            weight,
            batch.teacher_hidden_BSG.flatten(0, 1),
            problem.teacher_weight_VG,
            batch.labels_BS.flatten(),
            divergence=case.divergence,
            beta=case.beta,
            temperature=case.temperature,
            student_softcap=case.softcap,
            teacher_softcap=case.softcap,
            reduction="sum",
        )
        return rows[0] / max(problem.targets, 1)

    return loss


def trl_gkd():
    from trl.experimental.gkd import GKDTrainer

    def loss(problem, index, weight, hidden):
        student, teacher = logits_of_both(problem, index, weight, hidden)
        return GKDTrainer.generalized_jsd_loss(
            student,
            teacher,
            labels=problem.batches[index].labels_BS,
            beta=weight_of_teacher(problem.case),
            temperature=problem.case.temperature,
            num_items_in_batch=problem.targets,
        )

    return loss


def trl_distillation():
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    def loss(problem, index, weight, hidden):
        case, batch = problem.case, problem.batches[index]
        return _chunked_divergence_loss(
            hidden,
            batch.teacher_hidden_BSG,
            weight,
            problem.teacher_weight_VG,
            batch.labels_BS != IGNORED,
            weight_of_teacher(case),
            num_items_in_batch=problem.targets,
            student_final_logit_softcapping=case.softcap or None,
            teacher_final_logit_softcapping=case.softcap or None,
            temperature=case.temperature,
        )[0]

    return loss


def liger_chunked():
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    def loss(problem, index, weight, hidden):
        case, batch = problem.case, problem.batches[index]
        if case.softcap:
            return None
        function = LigerFusedLinearJSDLoss(
            weight_hard_loss=0.0,
            weight_soft_loss=1.0,
            beta=weight_of_teacher(case),
            ignore_index=IGNORED,
            temperature=case.temperature,
            compiled=False,
            chunk_size=32,
        )
        return function(
            hidden.flatten(0, 1),
            weight,
            batch.teacher_hidden_BSG.flatten(0, 1),
            problem.teacher_weight_VG,
            batch.labels_BS.flatten(),
        )

    return loss


def ms_swift():
    module = module_of("ms-swift", "swift/rlhf_trainers/gkd_loss.py")

    def loss(problem, index, weight, hidden):
        case, labels_BS = problem.case, problem.batches[index].labels_BS
        student, teacher = logits_of_both(problem, index, weight, hidden)
        output = module.TeacherOutput(full_logits=teacher, labels=labels_BS)
        total, valid = module.gkd_loss(student, output, labels_BS, weight_of_teacher(case), case.temperature)
        return total * 0 if valid == 0 else total / valid  # as GKDTrainer divides

    return loss


def automodel():
    module = module_of("nemo-automodel", "nemo_automodel/components/loss/kd_loss.py")

    def loss(problem, index, weight, hidden):
        case = problem.case
        if case.divergence != "forward_kl":
            return None
        student, teacher = logits_of_both(problem, index, weight, hidden)
        return module.KDLoss(ignore_index=IGNORED, temperature=case.temperature)(
            student, teacher, problem.batches[index].labels_BS, num_batch_labels=problem.targets
        )

    return loss


def modelopt():
    module = module_of("nvidia-modelopt", "modelopt/torch/distill/losses.py")

    def loss(problem, index, weight, hidden):
        case = problem.case
        if case.divergence != "forward_kl":
            return None
        student, teacher = logits_of_both(problem, index, weight, hidden)
        return module.LogitsDistillationLoss(temperature=case.temperature)(student, teacher)

    return loss


IMPLEMENTATIONS = [
    Implementation("distill", "distill-losses", "`LinearJSD`", distill, "the targets of the whole step"),
    Implementation("TRL GKD", "trl", "`GKDTrainer.generalized_jsd_loss`", trl_gkd, "the targets of the whole step"),
    Implementation(
        "TRL distillation",
        "trl",
        "`DistillationTrainer`'s chunked divergence",
        trl_distillation,
        "the targets of the whole step",
    ),
    Implementation(
        "Liger", "liger-kernel", "`LigerFusedLinearJSDLoss`", liger_chunked, "the targets of the micro-batch", True
    ),
    Implementation("ms-swift", "ms-swift", "`gkd_loss`", ms_swift, "the targets of the micro-batch", True),
    Implementation("Automodel", "nemo-automodel", "`KDLoss`", automodel, "the targets of the whole step"),
    Implementation(
        "Model-Optimizer",
        "nvidia-modelopt",
        "`LogitsDistillationLoss`",
        modelopt,
        "all logits of the micro-batch",
        True,
    ),
]

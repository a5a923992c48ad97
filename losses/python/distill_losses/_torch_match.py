"""Checks that a build fits the torch that is installed. The wheel of distill-cpp holds this file, too."""


def mismatch(
    what: str, built_torch: str, built_cuda: str | None, found_torch: str, found_cuda: str | None
) -> str | None:
    """Returns why `what`, built for one torch, does not go with another one; None where it does.

    `found_torch` may have a local part (2.11.0+cu130). The interface of libtorch changes between releases, so that the
    release must be the same; CUDA's libraries keep theirs within a major version.
    """
    wrong_release = found_torch.split("+")[0] != built_torch
    wrong_cuda = built_cuda is not None and (found_cuda or "").split(".")[0] != built_cuda.split(".")[0]
    if not wrong_release and not wrong_cuda:
        return None

    def described(version, cuda):
        return f"torch {version} ({f'CUDA {cuda}' if cuda else 'without CUDA'})"

    name = what.split()[0]
    return (
        f"{what} was built for {described(built_torch, built_cuda)}, found {described(found_torch, found_cuda)}: "
        f"install that torch, or the wheel of {name} for this one"
    )

"""The files and commits of a git repository, for the checks that scripts/test.sh runs."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git(root, *arguments):
    """The output of a git command in `root`; None if the command fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def tracked_files(root, *patterns):
    """Files that git tracks, and new ones that it does not ignore, relative to `root`, sorted."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns) or ""
    return sorted(name for name in set(listed.split("\0")) if name and (Path(root) / name).is_file())


def base_commit(root, named=None):
    """The commit that changes are counted from; None if there is none, as in a clone of a single commit.

    It is `named` or $DISTILL_BASE, otherwise the merge base with origin/main or main, and on these branches HEAD~1.
    """
    named = named or os.environ.get("DISTILL_BASE")
    if named:
        found = git(root, "rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
        if found is None:
            raise SystemExit(f"no commit '{named}' in this repository")
        return found.strip()
    head = git(root, "rev-parse", "HEAD")
    for branch in ("origin/main", "main"):
        base = git(root, "merge-base", "HEAD", branch)
        if base is not None and base != head:
            return base.strip()
    base = git(root, "rev-parse", "--verify", "--quiet", "HEAD~1")
    return base.strip() if base else None


def changed_files(root, base):
    """Existing files that differ from commit `base`, uncommitted and new ones included; all files if `base` is None."""
    if base is None:
        return tracked_files(root)
    differing = (git(root, "diff", "-z", "--name-only", "--diff-filter=d", base) or "").split("\0")
    new = (git(root, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0")
    return sorted(name for name in {*differing, *new} if name and (Path(root) / name).is_file())

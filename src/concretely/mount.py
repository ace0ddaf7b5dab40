"""The file system of a folder: whether it is on this machine only, and whether its locks reach other machines."""

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""The file in which Linux lists the mounted file systems."""
LOCK_OPTIONS = {"nfs": ("nolock", "local_lock=all", "local_lock=flock"), "lustre": ("localflock",), "cifs": ("nobrl",)}
"""Options of network file systems with which their locks do not reach other machines."""
LOCAL_LOCKS = ("fuse", "beegfs", "9p", "virtiofs", "vboxsf")
"""File systems that may be mounted on several machines, whose locks usually do not reach others."""
FUSE_LOCKS = ("fuse.glusterfs", "fuse.ceph-fuse", "fuse.juicefs")
"""File systems in user space whose locks do reach other machines."""
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "exfat", "vfat", "ntfs3")
"""File systems of one machine."""


def is_local(folder: Path) -> bool:
    """Return whether a folder is on a file system of this machine only, as far as is known.

    Only Linux lists the file systems. Elsewhere they are taken for local ones.
    """
    kind, _ = _file_system(folder)
    return not kind or kind in LOCAL


def local_locks(folder: Path) -> str | None:
    """Return the file system of a folder if its locks may not reach other machines, else None.

    Linux lists the file systems and their options. Elsewhere this is not known, and None is returned.
    """
    kind, options = _file_system(folder)
    family = "nfs" if kind == "nfs4" else kind.partition(".")[0]
    if matched := next((option for option in options if option in LOCK_OPTIONS.get(family, ())), None):
        return f"{kind} with {matched}"
    return kind if family in LOCAL_LOCKS and kind not in FUSE_LOCKS else None


def _file_system(folder: Path) -> tuple[str, list[str]]:
    """Return the kind and the options of the file system of a folder, or nothing where they are not known."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", []
    place, longest, kind, options = folder.resolve(), 0, "", list[str]()
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4]))
        # of two at one place, the later hides the other
        if place.is_relative_to(point) and len(point.parts) >= longest:
            longest, (kind, _, *others) = len(point.parts), after.split(" ")
            options = [*before.split()[5].split(","), *",".join(others).split(",")]
    return kind, options

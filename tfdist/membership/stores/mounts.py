"""Says whether a path lies on a network file system, where SQLite's locks cannot be trusted. Pure but for one read."""

import os

_NAMES = (
    "nfs nfs4 cifs smb smb2 smb3 smbfs 9p afs ceph lustre glusterfs beegfs gpfs orangefs pvfs2 ocfs2 gfs2 davfs "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.blobfuse fuse.juicefs fuse.mount_s3 "
    "fuse.davfs2 fuse.rclone fuse.beegfs fuse.lustre fuse.smbnetfs fuse.goofys"
)
NETWORK_TYPES = frozenset(_NAMES.split())


def network_file_system(path: str, mountinfo: str) -> str | None:
    """Returns the type of the network file system that holds `path`, or None if it is a local one.

    Args:
        path: absolute path with its links resolved.
        mountinfo: text of /proc/self/mountinfo (``id parent dev root mount-point options ... - type source ...``).
    """
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5 or not after:
            continue
        point = _unescaped(fields[4]).rstrip("/")
        inside = path == point or path.startswith(point + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one is seen
            best, found = len(point), after.split(" ")[0]
    return found if found in NETWORK_TYPES else None


def read_mountinfo() -> str:
    """Returns /proc/self/mountinfo, or nothing where there is none."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def resolved(path: str) -> str:
    """Returns the absolute path of `path` with links resolved."""
    return os.path.realpath(os.path.abspath(path))


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text

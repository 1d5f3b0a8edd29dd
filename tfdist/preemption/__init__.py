"""Where the news comes from that this machine is about to go: clouds' metadata servers, a file. Without TensorFlow.

SIGTERM is not among them: signals belong to the callback.
"""

from tfdist.preemption.amazon import AmazonSpot
from tfdist.preemption.azure import Azure
from tfdist.preemption.file import File
from tfdist.preemption.google import GoogleCloud
from tfdist.preemption.notice import Notice, Source, SourceUnavailable
from tfdist.preemption.parse import parse
from tfdist.preemption.watcher import Clock, Watcher

__all__ = [
    "AmazonSpot",
    "Azure",
    "Clock",
    "File",
    "GoogleCloud",
    "Notice",
    "Source",
    "SourceUnavailable",
    "Watcher",
    "parse",
]

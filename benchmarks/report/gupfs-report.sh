#!/bin/sh
# Made by `make report-tool`: the report tool with its own libraries.
export MPIEXEC="${MPIEXEC:-@MPIEXEC@}" GUPFS_BENCHMARKS="@BUILD@" PYTHONPATH="@REPORT@"
exec "@BUILD@/venv/bin/python" -B -m gupfs_report "$@"

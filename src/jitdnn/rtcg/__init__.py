"""Run-time code generation: Python functions traced to LLVM IR, compiled and cached."""

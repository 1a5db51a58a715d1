"""The policy language: a subset of Python for policies from untrusted sources.

`syntax` rejects syntax outside the subset, `names` and `kinds` resolve names and types, `rewrite` adds step counts and
guards, `program` compiles the source, and `stages` declares the policies of every stage.
"""

from headway.policies.code.names import CodeParameter
from headway.policies.code.program import Program, check, plain_program, stage_of
from headway.policies.code.rejection import CodeError, Rejection

__all__ = ["CodeError", "CodeParameter", "Program", "Rejection", "check", "plain_program", "stage_of"]

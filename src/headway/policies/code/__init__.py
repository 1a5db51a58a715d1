"""The policy language: a part of Python for policies that may come from anywhere.

`syntax` refuses whatever is not of it, `names` and `kinds` work out what is meant, `rewrite` counts steps and guards
what could do harm, `program` compiles, and `stages` puts it behind the five stages.
"""

from headway.policies.code.names import CodeParameter
from headway.policies.code.program import Program, check, plain_program, stage_of
from headway.policies.code.rejection import CodeError, Rejection

__all__ = ["CodeError", "CodeParameter", "Program", "Rejection", "check", "plain_program", "stage_of"]

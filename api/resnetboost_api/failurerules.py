"""The CEL rules of failurePolicy.rules, and its description: all derived from the table of failure classes."""

from resnetboost_api import failures
from resnetboost_api.fields import Rule

MOST_RULES = 10

_CODES = {verdict.name: failures.exit_codes(verdict) for verdict in failures.RULED}
_ONE_CODE = {name: min(codes) for name, codes in _CODES.items() if len(codes) == 1}
_ANY_CODE = [name for name, codes in _CODES.items() if len(codes) == 255]
_WITH_CODES = [name for name, codes in _CODES.items() if codes]
_CODES_OF_OTHERS = sorted(set(range(1, 129)) - _CODES[failures.INTERNAL_ERROR.name])
# Whether class c can end with exit code e.
_CAN_END = f"""
(c in {_ANY_CODE} || (c in {_ONE_CODE} && {_ONE_CODE}[c] == e) || (c == 'Killed' && e > 128) ||
(c == 'InternalError' && e <= 128 && !(e in {_CODES_OF_OTHERS})))
"""
_PLACES = list(range(MOST_RULES))
_NAMES = [f"rule-{place + 1}" for place in _PLACES]
_NAME = f"(has(self[i].name) ? self[i].name : {_NAMES}[i])"
# Whether a rule before the one at i takes class c, exit code e, or both.
_CLASS_TAKEN = "(size(self[j].onClasses) == 0 || c in self[j].onClasses)"
_CODE_TAKEN = "(size(self[j].onExitCodes) == 0 || e in self[j].onExitCodes)"
_ONLY_CODE_TAKEN = f"""
(size(self[j].onExitCodes) == 0 || (c in {_ONE_CODE} && {_ONE_CODE}[c] in self[j].onExitCodes))
"""
# Whether the rules before the one at i take all that it could match.
_NEVER = f"""
(size(self[i].onExitCodes) == 0 ? size(self[i].onClasses) > 0 &&
self[i].onClasses.all(c, {_PLACES}.exists(j, j < i && {_CLASS_TAKEN} && {_ONLY_CODE_TAKEN})) :
(size(self[i].onClasses) == 0 ? {_WITH_CODES} : self[i].onClasses).all(c, self[i].onExitCodes.all(e, !{_CAN_END} ||
{_PLACES}.exists(j, j < i && {_CLASS_TAKEN} && {_CODE_TAKEN}))))
"""

# Of each rule.
ON_ONE = (
    Rule(
        "size(self.onClasses) > 0 || size(self.onExitCodes) > 0",
        "a rule without onClasses and onExitCodes would match nothing; give at least one of them",
    ),
    Rule(
        f"""
        size(self.onExitCodes) == 0 || self.onClasses.all(c, self.onExitCodes.exists(e, {_CAN_END}))
        """,
        "one of onClasses cannot end with any of onExitCodes; take it out, or give it a rule without exit codes",
        field_path=".onClasses",
        message_expression=f"""
        self.onClasses.filter(c, !self.onExitCodes.exists(e, {_CAN_END}))[0]
        + " cannot end with any of onExitCodes; take it out, or give it a rule without exit codes"
        """,
    ),
    Rule(
        f"""
        size(self.onClasses) == 0 || self.onExitCodes.all(e, self.onClasses.exists(c, {_CAN_END}))
        """,
        "none of onClasses can end with one of onExitCodes; take it out, or give it a rule without classes",
        field_path=".onExitCodes",
    ),
    Rule(
        "!has(self.name) || !self.name.matches('^rule-[0-9]+$')",
        "rule-1, rule-2 and so on are the names of rules without one; choose another name",
        field_path=".name",
    ),
)

# Of the list.
ON_ALL = (
    Rule(
        f"""
        {_PLACES}.all(i, i >= size(self) || !has(self[i].name) || {_PLACES}.all(j, j >= i || !has(self[j].name) ||
        self[j].name != self[i].name))
        """,
        "two rules have the same name, so that status.attempts could not say which decided; rename one",
    ),
    Rule(
        f"{_PLACES}.all(i, i >= size(self) || !{_NEVER})",
        "a rule can never match, because the rules before it take all its failures; move it up, or leave it out",
        message_expression=f"""
        {_PLACES}.filter(i, i < size(self) && {_NEVER}).map(i, {_NAME})[0]
        + " can never match, because the rules before it take all its failures; move it up, or leave it out"
        """,
    ),
)


def _described() -> str:
    default = "; ".join(f"{action} for {', '.join(names)}" for action, names in failures.default_rules().items())
    return (
        f"Rules by class and exit code of a failure, of which the first that matches decides. Without one: {default}."
    )


DESCRIPTION = _described()

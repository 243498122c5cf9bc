"""May this command run?

``decide`` answers that, ``load_layers`` gives it rules, ``append_rule`` adds one after a «yes,
always», ``check`` and ``lint`` implement the command line.  Reading scripts is split in two on
purpose: ``strict_reader`` believes nothing (for allow), ``lenient_reader`` and ``wrappers`` see
everything (for forbid and ask).

All pure but ``load`` (reads files) and ``amend`` (writes one line).  tree-sitter and Starlark are
imported at the first script and the first rules file, not before.
"""

from handrail.policy.amend import append_rule
from handrail.policy.check import CheckResult, check
from handrail.policy.context import Approval, Granular, Situation
from handrail.policy.dangerous import Danger, Effect, danger, effects
from handrail.policy.decide import Action, Cause, Finding, Verdict, decide
from handrail.policy.known_safe import is_known_safe
from handrail.policy.language import RulesFileError
from handrail.policy.legacy_table import SeedAction, SeedVerdict, decide_seed_era
from handrail.policy.lint import LintResult, lint
from handrail.policy.load import Layer, Loaded, Problem, load_files, load_layers, parse_rules
from handrail.policy.proposals import is_too_broad
from handrail.policy.rules import Decision, Match, Policy, PrefixRule, Sandbox
from handrail.policy.strict_reader import plain_commands, shell_call, split

__all__ = [
    "Action",
    "Approval",
    "Cause",
    "CheckResult",
    "Danger",
    "Decision",
    "Effect",
    "Finding",
    "Granular",
    "Layer",
    "LintResult",
    "Loaded",
    "Match",
    "Policy",
    "PrefixRule",
    "Problem",
    "RulesFileError",
    "Sandbox",
    "SeedAction",
    "SeedVerdict",
    "Situation",
    "Verdict",
    "append_rule",
    "check",
    "danger",
    "decide",
    "decide_seed_era",
    "effects",
    "is_known_safe",
    "is_too_broad",
    "lint",
    "load_files",
    "load_layers",
    "parse_rules",
    "plain_commands",
    "shell_call",
    "split",
]

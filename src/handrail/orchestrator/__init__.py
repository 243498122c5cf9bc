"""Runs one command for an agent: decide, ask, choose the sandbox, run, and ask again if refused.

settings, call, requirement         what a call needs, from a frozen snapshot      (pure)
approval_cache, narrow_offer        what is remembered, what is offered            (pure)
approvals, approvers, question_text questions, their answers and their text
audit, save_rule                    events; rules that are added
call_flow, run                      the steps of a call, a retry outside the sandbox among them
network_call                        questions about hosts, and what was answered
one_shot, patches                   commands run to their end; patches
forbidden_programs                  programs that rules forbid, hidden in the sandbox
"""

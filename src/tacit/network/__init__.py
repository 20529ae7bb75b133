"""A study between machines: the same study file and functions as `tacit simulate`, with FLARE between them.

| file                  | who         | what                                                                           |
|-----------------------|-------------|--------------------------------------------------------------------------------|
| `agreement`           | both        | what all processes agree on: plan, public columns, sites and their budgets     |
| `certificates`        | both        | identities: the authority, kits, and why a connection fails                    |
| `channel`             | both        | the transport: bytes between processes, by NVIDIA FLARE's cells                |
| `processes`           | both        | locks, compiled programs and polling of long-lived processes                   |
| `provision`           | coordinator | `tacit network init`: certificates, start-up kits, site files                  |
| `serve`               | coordinator | `tacit serve`: sessions until there is a result                                |
| `coordinator_session` | coordinator | one session of a study                                                         |
| `remote`              | coordinator | a host whose sites are elsewhere; it trusts nothing they say                   |
| `notes`               | coordinator | checks of the notes that sites send                                            |
| `status`              | coordinator | the visible state of a running study; withdrawals                              |
| `join`                | site        | `tacit join`: sessions until it is stopped                                     |
| `scales`              | both        | the scales of columns, sent by the coordinator and kept by sites               |
| `site_session`        | site        | one session of a site: behind its own limits, ledger, store and audit log      |
| `audit_log`           | site        | a line for every message that was answered                                     |

docs/deploy.md is the operator's guide.
"""

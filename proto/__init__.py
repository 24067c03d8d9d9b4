"""The wire: message definitions, frames of arrays, typed calls and errors.

Owns everything that two processes of a job must agree on byte for byte. Does not
own what the calls mean (ps/, master/, worker/) and imports nothing of ours. channels/ has servers
and clients of calls, plane/ the data plane, wire/ frames and sockets, values/ what messages hold.
"""

"""The rules of Pod Security `restricted`, for clusters that are older than its admission."""

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir"),
    *("ephemeral", "persistentVolumeClaim", "projected", "secret"),
}


def violations(spec):
    """The rules of `restricted` that a pod breaks, in words: those of Kubernetes 1.30."""
    pod = spec.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"sysctl {each['name']}" for each in pod.get("sysctls", ())]
    for volume in spec.get("volumes", ()):
        found += [f"volume {kind}" for kind in volume.keys() - {"name"} - VOLUMES]
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        own = pod | container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation", True),
            "capabilities": "ALL" not in capabilities.get("drop", ())
            or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": not own.get("runAsNonRoot", False),
            "runAsUser": own.get("runAsUser", 1) == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "procMount": own.get("procMount", "Default") != "Default",
            "hostPort": any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [rule for rule, broken in wrong.items() if broken]
    return found

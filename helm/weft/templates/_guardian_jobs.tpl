{{/*
Confines what the lcm may do with its right to make Jobs in the release's namespace, where other services' Secrets are: it
makes and removes Guardians, with what the chart's own pod template has. (dict "root" $ "name" "guardian" "ports" ...).
*/}}
{{- define "weft.guardianJobsPolicy" -}}
{{- $root := .root -}}
{{- $full := include "weft.fullname" $root -}}
{{- $name := printf "%s-guardian-jobs" $full -}}
{{- $pod := include "weft.servicePod" . | fromYaml -}}
{{- $secrets := list -}}
{{- range $pod.spec.volumes }}
{{- range (dig "projected" "sources" (list) .) }}{{ $secrets = append $secrets .secret.name }}{{ end }}
{{- end -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "weft.labels" $root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: {{ $root.Release.Namespace }}}
    resourceRules:
      - apiGroups: [batch]
        apiVersions: [v1]
        resources: [jobs]
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: of-the-lcm
      expression: 'request.userInfo.username == "system:serviceaccount:{{ $root.Release.Namespace }}:{{ $full }}-lcm"'
  variables:
    - name: labels
      expression: '(request.operation == "DELETE" ? oldObject : object).metadata.?labels.orValue({})'
    - name: pod
      expression: 'object.spec.template.spec'
    - name: containers
      expression: 'variables.pod.containers + variables.pod.?initContainers.orValue([])'
    - name: volumes
      expression: 'variables.pod.?volumes.orValue([])'
  validations:
    - expression: >-
        variables.labels[?"app.kubernetes.io/component"].orValue("") == "guardian-job" &&
        variables.labels[?"app.kubernetes.io/instance"].orValue("") == "{{ $full }}"
      message: "metadata.labels: not those of a Guardian of this installation"
    - expression: >-
        request.operation == "DELETE" || (variables.pod.?serviceAccountName.orValue("") == "{{ $full }}-guardian" &&
        variables.containers.all(container, container.image == "{{ include "weft.image" (dict "root" $root "name" "platform") }}"))
      message: "spec.template.spec: not the account or the image of the guardian"
    - expression: >-
        request.operation == "DELETE" || (variables.volumes.all(volume, has(volume.emptyDir) || (has(volume.projected) &&
        volume.projected.sources.all(source, has(source.secret) &&
        source.secret.name in {{ uniq $secrets | sortAlpha | toJson }}))) &&
        variables.containers.all(container, !has(container.envFrom) &&
        container.?env.orValue([]).all(variable, !has(variable.valueFrom))))
      message: "spec.template.spec.volumes: not the Secrets of the guardian alone"
    - expression: >-
        request.operation == "DELETE" || (!variables.pod.?hostNetwork.orValue(false) &&
        !variables.pod.?hostPID.orValue(false) && !variables.pod.?hostIPC.orValue(false) &&
        variables.pod.?securityContext.?runAsNonRoot.orValue(false) &&
        variables.containers.all(container, !container.?securityContext.?privileged.orValue(true) &&
        !container.?securityContext.?allowPrivilegeEscalation.orValue(true) &&
        container.?securityContext.?capabilities.?add.orValue([]).size() == 0))
      message: "spec.template.spec: Pod Security restricted does not admit it"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "weft.labels" $root | nindent 4 }}
spec: {policyName: {{ $name }}, validationActions: [Deny]}
{{- end -}}

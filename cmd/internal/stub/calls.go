package stub

// calls.go - passes each call to the test's functions.

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
)

func answer[Request, Response any](ctx context.Context, m *Manager, request *connect.Request[Request]) (*connect.Response[Response], error) {
	if m.Unary == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not in this test"))
	}
	message, err := m.Unary(ctx, request.Msg)
	if err != nil {
		return nil, err
	}
	response, ok := message.(*Response)
	if !ok {
		return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("the test answers %T with %T", request.Msg, message))
	}
	return connect.NewResponse(response), nil
}

func stream[Request, Response any](ctx context.Context, on func(context.Context, *Request, func(*Response) error) error,
	request *connect.Request[Request], to *connect.ServerStream[Response]) error {
	if on == nil {
		return connect.NewError(connect.CodeUnimplemented, errors.New("not in this test"))
	}
	return on(ctx, request.Msg, to.Send)
}

// GetStatus implements the service.
func (m *Manager) GetStatus(ctx context.Context, r *connect.Request[v1.GetStatusRequest]) (*connect.Response[v1.GetStatusResponse], error) {
	return answer[v1.GetStatusRequest, v1.GetStatusResponse](ctx, m, r)
}

// WhoAmI implements the service.
func (m *Manager) WhoAmI(ctx context.Context, r *connect.Request[v1.WhoAmIRequest]) (*connect.Response[v1.WhoAmIResponse], error) {
	return answer[v1.WhoAmIRequest, v1.WhoAmIResponse](ctx, m, r)
}

// ListHosts implements the service.
func (m *Manager) ListHosts(ctx context.Context, r *connect.Request[v1.ListHostsRequest]) (*connect.Response[v1.ListHostsResponse], error) {
	return answer[v1.ListHostsRequest, v1.ListHostsResponse](ctx, m, r)
}

// RevokeHost implements the service.
func (m *Manager) RevokeHost(ctx context.Context, r *connect.Request[v1.RevokeHostRequest]) (*connect.Response[v1.RevokeHostResponse], error) {
	return answer[v1.RevokeHostRequest, v1.RevokeHostResponse](ctx, m, r)
}

// QuarantineHost implements the service.
func (m *Manager) QuarantineHost(ctx context.Context, r *connect.Request[v1.QuarantineHostRequest]) (*connect.Response[v1.QuarantineHostResponse], error) {
	return answer[v1.QuarantineHostRequest, v1.QuarantineHostResponse](ctx, m, r)
}

// RevokeUser implements the service.
func (m *Manager) RevokeUser(ctx context.Context, r *connect.Request[v1.RevokeUserRequest]) (*connect.Response[v1.RevokeUserResponse], error) {
	return answer[v1.RevokeUserRequest, v1.RevokeUserResponse](ctx, m, r)
}

// ListSites implements the service.
func (m *Manager) ListSites(ctx context.Context, r *connect.Request[v1.ListSitesRequest]) (*connect.Response[v1.ListSitesResponse], error) {
	return answer[v1.ListSitesRequest, v1.ListSitesResponse](ctx, m, r)
}

// SetSite implements the service.
func (m *Manager) SetSite(ctx context.Context, r *connect.Request[v1.SetSiteRequest]) (*connect.Response[v1.SetSiteResponse], error) {
	return answer[v1.SetSiteRequest, v1.SetSiteResponse](ctx, m, r)
}

// DrainHost implements the service.
func (m *Manager) DrainHost(ctx context.Context, r *connect.Request[v1.DrainHostRequest]) (*connect.Response[v1.DrainHostResponse], error) {
	return answer[v1.DrainHostRequest, v1.DrainHostResponse](ctx, m, r)
}

// TrustHost implements the service.
func (m *Manager) TrustHost(ctx context.Context, r *connect.Request[v1.TrustHostRequest]) (*connect.Response[v1.TrustHostResponse], error) {
	return answer[v1.TrustHostRequest, v1.TrustHostResponse](ctx, m, r)
}

// RemoveHost implements the service.
func (m *Manager) RemoveHost(ctx context.Context, r *connect.Request[v1.RemoveHostRequest]) (*connect.Response[v1.RemoveHostResponse], error) {
	return answer[v1.RemoveHostRequest, v1.RemoveHostResponse](ctx, m, r)
}

// CreateImage implements the service.
func (m *Manager) CreateImage(ctx context.Context, r *connect.Request[v1.CreateImageRequest]) (*connect.Response[v1.CreateImageResponse], error) {
	return answer[v1.CreateImageRequest, v1.CreateImageResponse](ctx, m, r)
}

// ListImages implements the service.
func (m *Manager) ListImages(ctx context.Context, r *connect.Request[v1.ListImagesRequest]) (*connect.Response[v1.ListImagesResponse], error) {
	return answer[v1.ListImagesRequest, v1.ListImagesResponse](ctx, m, r)
}

// PublishImage implements the service.
func (m *Manager) PublishImage(ctx context.Context, r *connect.Request[v1.PublishImageRequest]) (*connect.Response[v1.PublishImageResponse], error) {
	return answer[v1.PublishImageRequest, v1.PublishImageResponse](ctx, m, r)
}

// RemoveImage implements the service.
func (m *Manager) RemoveImage(ctx context.Context, r *connect.Request[v1.RemoveImageRequest]) (*connect.Response[v1.RemoveImageResponse], error) {
	return answer[v1.RemoveImageRequest, v1.RemoveImageResponse](ctx, m, r)
}

// CreateCluster implements the service.
func (m *Manager) CreateCluster(ctx context.Context, r *connect.Request[v1.CreateClusterRequest]) (*connect.Response[v1.CreateClusterResponse], error) {
	return answer[v1.CreateClusterRequest, v1.CreateClusterResponse](ctx, m, r)
}

// ListClusters implements the service.
func (m *Manager) ListClusters(ctx context.Context, r *connect.Request[v1.ListClustersRequest]) (*connect.Response[v1.ListClustersResponse], error) {
	return answer[v1.ListClustersRequest, v1.ListClustersResponse](ctx, m, r)
}

// ClusterTraffic implements the service.
func (m *Manager) ClusterTraffic(ctx context.Context, r *connect.Request[v1.ClusterTrafficRequest]) (*connect.Response[v1.ClusterTrafficResponse], error) {
	return answer[v1.ClusterTrafficRequest, v1.ClusterTrafficResponse](ctx, m, r)
}

// ResizeCluster implements the service.
func (m *Manager) ResizeCluster(ctx context.Context, r *connect.Request[v1.ResizeClusterRequest]) (*connect.Response[v1.ResizeClusterResponse], error) {
	return answer[v1.ResizeClusterRequest, v1.ResizeClusterResponse](ctx, m, r)
}

// DeleteCluster implements the service.
func (m *Manager) DeleteCluster(ctx context.Context, r *connect.Request[v1.DeleteClusterRequest]) (*connect.Response[v1.DeleteClusterResponse], error) {
	return answer[v1.DeleteClusterRequest, v1.DeleteClusterResponse](ctx, m, r)
}

// ListGuests implements the service.
func (m *Manager) ListGuests(ctx context.Context, r *connect.Request[v1.ListGuestsRequest]) (*connect.Response[v1.ListGuestsResponse], error) {
	return answer[v1.ListGuestsRequest, v1.ListGuestsResponse](ctx, m, r)
}

// StartGuest implements the service.
func (m *Manager) StartGuest(ctx context.Context, r *connect.Request[v1.StartGuestRequest]) (*connect.Response[v1.StartGuestResponse], error) {
	return answer[v1.StartGuestRequest, v1.StartGuestResponse](ctx, m, r)
}

// StopGuest implements the service.
func (m *Manager) StopGuest(ctx context.Context, r *connect.Request[v1.StopGuestRequest]) (*connect.Response[v1.StopGuestResponse], error) {
	return answer[v1.StopGuestRequest, v1.StopGuestResponse](ctx, m, r)
}

// Migrate implements the service.
func (m *Manager) Migrate(ctx context.Context, r *connect.Request[v1.MigrateRequest]) (*connect.Response[v1.MigrateResponse], error) {
	return answer[v1.MigrateRequest, v1.MigrateResponse](ctx, m, r)
}

// CancelMigration implements the service.
func (m *Manager) CancelMigration(ctx context.Context, r *connect.Request[v1.CancelMigrationRequest]) (*connect.Response[v1.CancelMigrationResponse], error) {
	return answer[v1.CancelMigrationRequest, v1.CancelMigrationResponse](ctx, m, r)
}

// ListMigrations implements the service.
func (m *Manager) ListMigrations(ctx context.Context, r *connect.Request[v1.ListMigrationsRequest]) (*connect.Response[v1.ListMigrationsResponse], error) {
	return answer[v1.ListMigrationsRequest, v1.ListMigrationsResponse](ctx, m, r)
}

// CreateRun implements the service.
func (m *Manager) CreateRun(ctx context.Context, r *connect.Request[v1.CreateRunRequest]) (*connect.Response[v1.CreateRunResponse], error) {
	return answer[v1.CreateRunRequest, v1.CreateRunResponse](ctx, m, r)
}

// StartRun implements the service.
func (m *Manager) StartRun(ctx context.Context, r *connect.Request[v1.StartRunRequest]) (*connect.Response[v1.StartRunResponse], error) {
	return answer[v1.StartRunRequest, v1.StartRunResponse](ctx, m, r)
}

// ListRuns implements the service.
func (m *Manager) ListRuns(ctx context.Context, r *connect.Request[v1.ListRunsRequest]) (*connect.Response[v1.ListRunsResponse], error) {
	return answer[v1.ListRunsRequest, v1.ListRunsResponse](ctx, m, r)
}

// RunProcesses implements the service.
func (m *Manager) RunProcesses(ctx context.Context, r *connect.Request[v1.RunProcessesRequest]) (*connect.Response[v1.RunProcessesResponse], error) {
	return answer[v1.RunProcessesRequest, v1.RunProcessesResponse](ctx, m, r)
}

// RemoveRun implements the service.
func (m *Manager) RemoveRun(ctx context.Context, r *connect.Request[v1.RemoveRunRequest]) (*connect.Response[v1.RemoveRunResponse], error) {
	return answer[v1.RemoveRunRequest, v1.RemoveRunResponse](ctx, m, r)
}

// CancelRun implements the service.
func (m *Manager) CancelRun(ctx context.Context, r *connect.Request[v1.CancelRunRequest]) (*connect.Response[v1.CancelRunResponse], error) {
	return answer[v1.CancelRunRequest, v1.CancelRunResponse](ctx, m, r)
}

// CreateToken implements the service.
func (m *Manager) CreateToken(ctx context.Context, r *connect.Request[v1.CreateTokenRequest]) (*connect.Response[v1.CreateTokenResponse], error) {
	return answer[v1.CreateTokenRequest, v1.CreateTokenResponse](ctx, m, r)
}

// AddUser implements the service.
func (m *Manager) AddUser(ctx context.Context, r *connect.Request[v1.AddUserRequest]) (*connect.Response[v1.AddUserResponse], error) {
	return answer[v1.AddUserRequest, v1.AddUserResponse](ctx, m, r)
}

// ListUsers implements the service.
func (m *Manager) ListUsers(ctx context.Context, r *connect.Request[v1.ListUsersRequest]) (*connect.Response[v1.ListUsersResponse], error) {
	return answer[v1.ListUsersRequest, v1.ListUsersResponse](ctx, m, r)
}

// DisableUser implements the service.
func (m *Manager) DisableUser(ctx context.Context, r *connect.Request[v1.DisableUserRequest]) (*connect.Response[v1.DisableUserResponse], error) {
	return answer[v1.DisableUserRequest, v1.DisableUserResponse](ctx, m, r)
}

// RemoveUser implements the service.
func (m *Manager) RemoveUser(ctx context.Context, r *connect.Request[v1.RemoveUserRequest]) (*connect.Response[v1.RemoveUserResponse], error) {
	return answer[v1.RemoveUserRequest, v1.RemoveUserResponse](ctx, m, r)
}

// SetQuota implements the service.
func (m *Manager) SetQuota(ctx context.Context, r *connect.Request[v1.SetQuotaRequest]) (*connect.Response[v1.SetQuotaResponse], error) {
	return answer[v1.SetQuotaRequest, v1.SetQuotaResponse](ctx, m, r)
}

// Recover implements the service.
func (m *Manager) Recover(ctx context.Context, r *connect.Request[v1.RecoverRequest]) (*connect.Response[v1.RecoverResponse], error) {
	return answer[v1.RecoverRequest, v1.RecoverResponse](ctx, m, r)
}

// ApplyPolicy implements the service.
func (m *Manager) ApplyPolicy(ctx context.Context, r *connect.Request[v1.ApplyPolicyRequest]) (*connect.Response[v1.ApplyPolicyResponse], error) {
	return answer[v1.ApplyPolicyRequest, v1.ApplyPolicyResponse](ctx, m, r)
}

// ListPolicies implements the service.
func (m *Manager) ListPolicies(ctx context.Context, r *connect.Request[v1.ListPoliciesRequest]) (*connect.Response[v1.ListPoliciesResponse], error) {
	return answer[v1.ListPoliciesRequest, v1.ListPoliciesResponse](ctx, m, r)
}

// TestPolicy implements the service.
func (m *Manager) TestPolicy(ctx context.Context, r *connect.Request[v1.TestPolicyRequest]) (*connect.Response[v1.TestPolicyResponse], error) {
	return answer[v1.TestPolicyRequest, v1.TestPolicyResponse](ctx, m, r)
}

// Explain implements the service.
func (m *Manager) Explain(ctx context.Context, r *connect.Request[v1.ExplainRequest]) (*connect.Response[v1.ExplainResponse], error) {
	return answer[v1.ExplainRequest, v1.ExplainResponse](ctx, m, r)
}

// Join implements the service.
func (m *Manager) Join(ctx context.Context, r *connect.Request[v1.JoinRequest]) (*connect.Response[v1.JoinResponse], error) {
	return answer[v1.JoinRequest, v1.JoinResponse](ctx, m, r)
}

// Watch implements the service.
func (m *Manager) Watch(ctx context.Context, r *connect.Request[v1.WatchRequest], to *connect.ServerStream[v1.WatchResponse]) error {
	return stream(ctx, m.OnWatch, r, to)
}

// RunOutput implements the service.
func (m *Manager) RunOutput(ctx context.Context, r *connect.Request[v1.RunOutputRequest], to *connect.ServerStream[v1.RunOutputResponse]) error {
	return stream(ctx, m.OnRunOutput, r, to)
}

// Events implements the service.
func (m *Manager) Events(ctx context.Context, r *connect.Request[v1.EventsRequest], to *connect.ServerStream[v1.EventsResponse]) error {
	return stream(ctx, m.OnEvents, r, to)
}

// Audit implements the service.
func (m *Manager) Audit(ctx context.Context, r *connect.Request[v1.AuditRequest], to *connect.ServerStream[v1.AuditResponse]) error {
	return stream(ctx, m.OnAudit, r, to)
}

// ListGuestConsoles implements the service.
func (m *Manager) ListGuestConsoles(ctx context.Context, r *connect.Request[v1.ListGuestConsolesRequest]) (*connect.Response[v1.ListGuestConsolesResponse], error) {
	return answer[v1.ListGuestConsolesRequest, v1.ListGuestConsolesResponse](ctx, m, r)
}

// GuestConsole implements the service.
func (m *Manager) GuestConsole(ctx context.Context, r *connect.Request[v1.GuestConsoleRequest], to *connect.ServerStream[v1.GuestConsoleResponse]) error {
	return stream(ctx, m.OnConsole, r, to)
}

// GetFile implements the service.
func (m *Manager) GetFile(ctx context.Context, r *connect.Request[v1.ControlGetFileRequest], to *connect.ServerStream[v1.ControlGetFileResponse]) error {
	return stream(ctx, m.OnGetFile, r, to)
}

// PutFile implements the service. It collects the messages of a file.
func (m *Manager) PutFile(_ context.Context, from *connect.ClientStream[v1.ControlPutFileRequest]) (*connect.Response[v1.ControlPutFileResponse], error) {
	var first *v1.ControlPutFileRequest
	var data []byte
	last := false
	for from.Receive() {
		if first == nil {
			first = from.Msg()
		}
		data = append(data, from.Msg().GetFile().GetData()...)
		last = last || from.Msg().GetFile().GetLast()
	}
	if err := from.Err(); err != nil {
		return nil, err
	}
	if !last || m.OnPutFile == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the file is not whole"))
	}
	if err := m.OnPutFile(first, data); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ControlPutFileResponse{Size: uint64(len(data))}), nil
}

// GuestExec implements the service.
func (m *Manager) GuestExec(ctx context.Context, both *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
	if m.OnExec == nil {
		return connect.NewError(connect.CodeUnimplemented, errors.New("not in this test"))
	}
	return m.OnExec(ctx, both)
}

// CreateCheckpoint implements the service.
func (m *Manager) CreateCheckpoint(ctx context.Context, r *connect.Request[v1.CreateCheckpointRequest]) (*connect.Response[v1.CreateCheckpointResponse], error) {
	return answer[v1.CreateCheckpointRequest, v1.CreateCheckpointResponse](ctx, m, r)
}

// ListCheckpoints implements the service.
func (m *Manager) ListCheckpoints(ctx context.Context, r *connect.Request[v1.ListCheckpointsRequest]) (*connect.Response[v1.ListCheckpointsResponse], error) {
	return answer[v1.ListCheckpointsRequest, v1.ListCheckpointsResponse](ctx, m, r)
}

// DeleteCheckpoint implements the service.
func (m *Manager) DeleteCheckpoint(ctx context.Context, r *connect.Request[v1.DeleteCheckpointRequest]) (*connect.Response[v1.DeleteCheckpointResponse], error) {
	return answer[v1.DeleteCheckpointRequest, v1.DeleteCheckpointResponse](ctx, m, r)
}

// ChangeCheckpoint implements the service.
func (m *Manager) ChangeCheckpoint(ctx context.Context, r *connect.Request[v1.ChangeCheckpointRequest]) (*connect.Response[v1.ChangeCheckpointResponse], error) {
	return answer[v1.ChangeCheckpointRequest, v1.ChangeCheckpointResponse](ctx, m, r)
}

// PlanCheckpoints implements the service.
func (m *Manager) PlanCheckpoints(ctx context.Context, r *connect.Request[v1.PlanCheckpointsRequest]) (*connect.Response[v1.PlanCheckpointsResponse], error) {
	return answer[v1.PlanCheckpointsRequest, v1.PlanCheckpointsResponse](ctx, m, r)
}

// RestoreCheckpoint implements the service.
func (m *Manager) RestoreCheckpoint(ctx context.Context, r *connect.Request[v1.RestoreCheckpointRequest]) (*connect.Response[v1.RestoreCheckpointResponse], error) {
	return answer[v1.RestoreCheckpointRequest, v1.RestoreCheckpointResponse](ctx, m, r)
}

// SpareHost implements the service.
func (m *Manager) SpareHost(ctx context.Context, r *connect.Request[v1.SpareHostRequest]) (*connect.Response[v1.SpareHostResponse], error) {
	return answer[v1.SpareHostRequest, v1.SpareHostResponse](ctx, m, r)
}

// CreateConsoleLink implements the service.
func (m *Manager) CreateConsoleLink(ctx context.Context, r *connect.Request[v1.CreateConsoleLinkRequest]) (*connect.Response[v1.CreateConsoleLinkResponse], error) {
	return answer[v1.CreateConsoleLinkRequest, v1.CreateConsoleLinkResponse](ctx, m, r)
}

// AllowStorage implements the service.
func (m *Manager) AllowStorage(ctx context.Context, r *connect.Request[v1.AllowStorageRequest]) (*connect.Response[v1.AllowStorageResponse], error) {
	return answer[v1.AllowStorageRequest, v1.AllowStorageResponse](ctx, m, r)
}

// ListStorage implements the service.
func (m *Manager) ListStorage(ctx context.Context, r *connect.Request[v1.ListStorageRequest]) (*connect.Response[v1.ListStorageResponse], error) {
	return answer[v1.ListStorageRequest, v1.ListStorageResponse](ctx, m, r)
}

// ForbidStorage implements the service.
func (m *Manager) ForbidStorage(ctx context.Context, r *connect.Request[v1.ForbidStorageRequest]) (*connect.Response[v1.ForbidStorageResponse], error) {
	return answer[v1.ForbidStorageRequest, v1.ForbidStorageResponse](ctx, m, r)
}

// CreateVolume implements the service.
func (m *Manager) CreateVolume(ctx context.Context, r *connect.Request[v1.CreateVolumeRequest]) (*connect.Response[v1.CreateVolumeResponse], error) {
	return answer[v1.CreateVolumeRequest, v1.CreateVolumeResponse](ctx, m, r)
}

// ListVolumes implements the service.
func (m *Manager) ListVolumes(ctx context.Context, r *connect.Request[v1.ListVolumesRequest]) (*connect.Response[v1.ListVolumesResponse], error) {
	return answer[v1.ListVolumesRequest, v1.ListVolumesResponse](ctx, m, r)
}

// DeleteVolume implements the service.
func (m *Manager) DeleteVolume(ctx context.Context, r *connect.Request[v1.DeleteVolumeRequest]) (*connect.Response[v1.DeleteVolumeResponse], error) {
	return answer[v1.DeleteVolumeRequest, v1.DeleteVolumeResponse](ctx, m, r)
}

// MoveVolume implements the service.
func (m *Manager) MoveVolume(ctx context.Context, r *connect.Request[v1.MoveVolumeRequest]) (*connect.Response[v1.MoveVolumeResponse], error) {
	return answer[v1.MoveVolumeRequest, v1.MoveVolumeResponse](ctx, m, r)
}

// VerifyCheckpoint implements the service.
func (m *Manager) VerifyCheckpoint(ctx context.Context, r *connect.Request[v1.VerifyCheckpointRequest]) (*connect.Response[v1.VerifyCheckpointResponse], error) {
	return answer[v1.VerifyCheckpointRequest, v1.VerifyCheckpointResponse](ctx, m, r)
}
